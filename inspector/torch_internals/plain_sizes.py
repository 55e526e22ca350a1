"""What torch asks of sizes that may be symbols, answered for numbers: its own answers load sympy, half a second."""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from operator import and_, or_
from threading import Lock, get_ident
from typing import Any

from torch import Tensor

_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
_FUNCTIONS = "torch.utils._sympy.functions"


class _Importing:
    """The builtin `__import__` while any thread has `plain_sizes` open: the others' imports are as ever."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: Counter[int] = Counter()
        self._before = builtins.__import__
        self._in_chain = False  # somebody's calls this one, for good

    def begin(self, thread: int) -> None:
        with self._lock:
            if not self._threads and not self._in_chain:
                self._before, builtins.__import__ = builtins.__import__, self.answer
            self._threads[thread] += 1

    def end(self, thread: int) -> None:
        """What has begun, if an interrupt let it."""
        with self._lock:
            self._threads[thread] -= 1
            self._threads += Counter()  # without the threads that are through
            if self._threads or self._in_chain:
                return
            if builtins.__import__ == self.answer:
                builtins.__import__ = self._before
            elif builtins.__import__ != self._before:
                self._in_chain = True

    def answer(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        known = _KNOWN.get(name) if fromlist or "." not in name else None  # `import a.b` gives a
        # A module that is loaded meanwhile keeps what it gets: it has its own names, a function's body none here.
        if known is not None and locals is None and get_ident() in self._threads and name not in sys.modules:
            asks = str(globals and globals.get("__name__"))
            if asks == "torch" or asks.startswith("torch."):
                return known
        return self._before(name, globals, locals, fromlist or (), level)


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Code of torch in this thread that imports functions of symbolic shapes gets some that know numbers, and ask the
    real ones for the rest; and where it imports sympy to see whether a number is one of its own, none is.

    Nothing of torch is replaced, and nothing stands in `sys.modules`: torch imports these functions where it calls
    them, so that the builtin `__import__` can answer. Once somebody has loaded symbolic shapes, all is as ever.
    """
    if _SYMBOLS in sys.modules:
        yield
        return
    thread = get_ident()
    try:  # an interrupt may come as soon as it has begun
        _importing.begin(thread)
        yield
    finally:
        _importing.end(thread)


def _is_plain(value: object) -> bool:
    """Whether no symbol can be in it."""
    if type(value) in (bool, int, float, str) or value is None:
        return True
    if isinstance(value, Tensor):
        return not value._has_symbolic_sizes_strides
    return isinstance(value, tuple | list) and all(map(_is_plain, value))


def _for_plain(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if not options and all(map(_is_plain, args)):
            return answer(*args)
        return getattr(import_module(_SYMBOLS), name)(*args, **options)

    return call


class _NeverRaisedError(Exception):
    """For torch to catch: whoever raises its own has loaded it."""


def _itself(value: Any) -> Any:
    return value


def _all(first: Any, *others: Any) -> Any:
    for each in others:
        first = and_(first, each)
    return first


def _any(first: Any, *others: Any) -> Any:
    for each in others:
        first = or_(first, each)
    return first


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


class _NoExpression:
    """What no number is one of."""


class _Known:
    """A module, as far as it is known without it: the rest of it loads it."""

    def __init__(self, module: str, known: Mapping[str, object]) -> None:
        self._module = module
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)


_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "expect_true": _itself,
    "guard_or_false": _itself,
    "guard_or_true": _itself,
    "guard_size_oblivious": _itself,
    "guarding_hint_or_throw": _itself,
    "statically_known_true": _itself,
    "sym_and": _all,
    "sym_or": _any,
    "sym_eq": _equal,
    "has_guarding_hint": lambda value: True,
    "has_hint": lambda value: True,  # so called in torch 2.11
    "size_hint": _itself,
    "is_nested_int": lambda value: False,
    "free_unbacked_symbols": lambda values: frozenset(),
    "has_free_unbacked_symbols": lambda values: False,
    "compute_unbacked_bindings": lambda shapes, *values: None,
    "_iterate_exprs": lambda values: iter(()),
    "_iterate_nodes": lambda values: iter(()),
}
"""What each answers where no symbol is (torch/fx/experimental/symbolic_shapes.py)."""

_KNOWN = {
    _SYMBOLS: _Known(
        _SYMBOLS,
        {name: _for_plain(name, answer) for name, answer in _ANSWERS.items()}
        | {"GuardOnDataDependentSymNode": _NeverRaisedError},
    ),
    "sympy": _Known("sympy", {"Basic": _NoExpression}),
    _FUNCTIONS: _Known(_FUNCTIONS, {"Max": lambda *symbols: import_module(_FUNCTIONS).Max(*symbols)}),
}
_importing = _Importing()
