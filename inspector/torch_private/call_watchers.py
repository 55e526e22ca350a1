"""Watch calls of modules, of `Function.apply` and of DataLoaders, in any thread."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.autograd.function import Function
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

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

        def register(hook: object, *kept: dict[int, Any]) -> None:
            # As torch's own functions do, but Ctrl-C finds no hook of which the stack does not know.
            handle = own(RemovableHandle(kept[0], extra_dict=[*kept[1:]]))
            stack.callback(handle.remove)
            for each, value in zip(kept, (hook, True), strict=False):
                dicts.append((each, handle.id))
                each[handle.id] = value

        torchs = nn.modules.module
        register(before, torchs._global_forward_pre_hooks)
        if after is not None:
            register(after, torchs._global_forward_hooks, torchs._global_forward_hooks_always_called)
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


CallStack = list[list[Any]]
"""The calls of modules that are running: of each a list that begins with the module."""

_stacks: dict[int, tuple[CallStack, ...]] = {}  # by thread
_wrapped_call = nn.Module._wrapped_call_impl
_original: CodeType = _wrapped_call.__code__


@contextmanager
def stacking_module_calls(calls: CallStack) -> Iterator[None]:
    """Keeps on a stack which calls of modules are running in this thread, their own hooks included.

    It costs a fraction of what global hooks do, with which torch leaves the fast path of a call. The function behind
    `Module.__call__` gets another code object meanwhile: to set the attribute instead would change the version of
    Module's type, and from Python 3.13 on a type whose version has changed a thousand times is slow for good.
    """
    thread = threading.get_ident()
    with leaving_lock:
        _stacks[thread] = (*_stacks.get(thread, ()), calls)
        _set_code()
    try:
        with out_of_compiled_code(_without_code):
            yield
    finally:
        with leaving_lock:
            others = tuple([each for each in _stacks[thread] if each is not calls])
            if others:
                _stacks[thread] = others
            else:
                del _stacks[thread]
            _set_code()


def _watched_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Do the same as `Module.__call__`, and note the call.

    Only its code is used: `Module.__call__` runs it with the globals of torch's own module.
    """
    stacks = _tapescope_stacks.get(_tapescope_thread(), ())  # type: ignore[name-defined]  # noqa: F821
    for calls in stacks:
        calls.append([self])
    try:
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    finally:
        for calls in stacks:
            calls.pop()


WATCHED_CALL = _watched_call.__code__


def _set_code() -> None:
    if _stacks:
        vars(nn.modules.module).update(_tapescope_stacks=_stacks, _tapescope_thread=threading.get_ident)
    _wrapped_call.__code__ = WATCHED_CALL if _stacks else _original


def _without_code() -> Callable[[], None]:
    _wrapped_call.__code__ = _original
    return _set_code


def has_late_hooks(module: nn.Module) -> bool:
    """Whether anything may be computed in a call of the module after its forward."""
    return bool(module._forward_hooks or module._backward_hooks or module._backward_pre_hooks)


def forward_has_run(frame: FrameType | None) -> bool:
    """Return whether a frame inside a module's call belongs to a hook that torch calls after the forward."""
    while frame is not None and frame.f_code is not WATCHED_CALL:
        if frame.f_code.co_name == "inner" and frame.f_code.co_filename == nn.modules.module.__file__:
            return frame.f_lasti > _forward_call(frame.f_code)
        frame = frame.f_back
    return False


@cache
def _forward_call(code: CodeType) -> int:
    """Return the offset of the instruction that calls the module's forward."""
    steps = list(dis.get_instructions(code))
    loaded = next((place for place, step in enumerate(steps) if step.argval == "forward_call"), len(steps))
    return next((step.offset for step in steps[loaded:] if step.opname == "CALL_FUNCTION_EX"), 2**31)


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


@contextmanager
def watching_batches(seen: Callable[[Any], None]) -> Iterator[None]:
    """Calls `seen` with each batch of any DataLoader, also those of loaders that are iterated already."""
    original = _BaseDataLoaderIter.__next__
    ended = False

    @wraps(original)
    def following(iterator: Any) -> Any:
        batch = original(iterator)
        if not ended:
            seen(batch)
        return batch

    _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ended = True  # others may have wrapped it meanwhile, and have this in their chain for good
        if _BaseDataLoaderIter.__next__ is following:
            _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]
