"""Calls of `Function.apply`, seen in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd.function import Function

from .compiled import out_of_compiled_code

AroundApply = Callable[[type[Function], tuple[Any, ...], dict[str, Any]], Callable[[Any], None]]
_around_apply: list[AroundApply] = []
_apply_lock = threading.Lock()
_original_apply = Function.__dict__["apply"]


@contextmanager
def around_function_apply(around: AroundApply) -> Iterator[None]:
    """Calls `around(SomeFunction, args, kwargs)` before each `SomeFunction.apply`, in any thread, and what it returns
    with the result afterwards.

    torch has no hook for this. `Function.apply` itself is replaced while at least one is there.
    """
    with _apply_lock:
        _around_apply.append(around)
        _replace_apply()
    try:
        with out_of_compiled_code(_without_apply):
            yield
    finally:
        with _apply_lock:
            _around_apply.remove(around)
            _replace_apply()


def _replace_apply() -> None:
    Function.apply = classmethod(_watched_apply) if _around_apply else _original_apply  # type: ignore[method-assign,assignment]


def _without_apply() -> Callable[[], None]:
    Function.apply = _original_apply  # type: ignore[method-assign]
    return _replace_apply


def _watched_apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    afterwards = [around(cls, args, kwargs) for around in tuple(_around_apply)]
    result = _original_apply.__get__(None, cls)(*args, **kwargs)
    for after in afterwards:
        after(result)
    return result


def is_generated(function: type[Function]) -> bool:
    """Whether torch.library made it, around an operator that its user calls."""
    return function.__module__ == "torch._library.autograd"
