"""Calls of modules, seen in any thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any

from torch import nn

from .compiled import leaving_lock, nothing, out_of_compiled_code
from .hooks import own

Before = Callable[[nn.Module, tuple[Any, ...]], None]


After = Callable[[nn.Module, tuple[Any, ...], Any], None]


_our_hooks: set[int] = set()


@contextmanager
def watching_modules(before: Before, after: After | None = None) -> Iterator[None]:
    """Calls `before` before each call of a module in any thread, and `after` afterwards, also where it raised.

    Calls inside of compiled code are not seen, but for those that run uncompiled there.
    """
    thread = threading.get_ident()
    with ExitStack() as stack:
        dicts: list[tuple[dict[int, Any], int]] = []
        handle = own(nn.modules.module.register_module_forward_pre_hook(before))
        stack.callback(handle.remove)
        dicts.append((nn.modules.module._global_forward_pre_hooks, handle.id))
        if after is not None:
            handle = own(nn.modules.module.register_module_forward_hook(after, always_call=True))
            stack.callback(handle.remove)
            dicts.append((nn.modules.module._global_forward_hooks, handle.id))
            dicts.append((nn.modules.module._global_forward_hooks_always_called, handle.id))
        stack.enter_context(_no_hooks_of_users({number for _, number in dicts}))
        stack.enter_context(out_of_compiled_code(partial(_without_hooks, dicts, thread)))
        yield


def _without_hooks(dicts: Sequence[tuple[dict[int, Any], int]], thread: int) -> Callable[[], None]:
    """Takes hooks out of their dicts."""
    if threading.get_ident() != thread:
        return nothing
    taken = [(hooks, number, list(hooks).index(number), hooks.pop(number)) for hooks, number in dicts]

    def back() -> None:
        for hooks, number, place, hook in taken:
            behind = list(hooks.items())[place:]
            for other, _ in behind:
                del hooks[other]
            hooks[number] = hook
            hooks.update(behind)

    return back


@contextmanager
def _no_hooks_of_users(numbers: set[int]) -> Iterator[None]:
    """torch.compile's wrapper warns its user of global hooks, which are called once for the wrapper, too: not of ours,
    which count it as the module."""
    with leaving_lock:
        _our_hooks.update(numbers)
        nn.modules.module._has_any_global_hook = _users_have_global_hooks
    try:
        yield
    finally:
        with leaving_lock:
            _our_hooks.difference_update(numbers)
            if not _our_hooks:
                nn.modules.module._has_any_global_hook = _has_any_global_hook


_has_any_global_hook = nn.modules.module._has_any_global_hook


def _users_have_global_hooks() -> bool:
    module = nn.modules.module
    return any(
        not _our_hooks.issuperset(hooks)
        for hooks in (
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
        )
    )


def frame_of_call() -> FrameType | None:
    """In a hook of all modules the frame of torch's that calls it, whose `kwargs` are what the module was called with
    by name: such hooks are given the other arguments alone."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != nn.modules.module.__file__:
        frame = frame.f_back
    return frame
