"""Watchers of calls of modules, of `Function.apply` and of DataLoaders, in any thread."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial, wraps
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.autograd.function import Function
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from .compiled import keep_compiler_out, leaving_lock, out_of_compiled_code
from .hooks import own

Before = Callable[[nn.Module, tuple[Any, ...]], None]


After = Callable[[nn.Module, tuple[Any, ...], Any], None]


_our_hooks: set[int] = set()


@contextmanager
def watching_modules(before: Before, after: After | None = None) -> Iterator[None]:
    """Call `before` before each call of a module in any thread, and `after` afterwards, even if the call raised.

    Calls inside compiled code are not seen, except those that run uncompiled there.
    """
    thread = threading.get_ident()
    with ExitStack() as stack:
        dicts: list[tuple[dict[int, Any], int]] = []

        def register(hook: object, *kept: dict[int, Any]) -> None:
            # Like torch's own functions, but the stack knows the handle before the hook is in place: Ctrl-C leaves no
            # hook.
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
    """Remove hooks from their dicts, and return a function that puts them back in the same places."""
    if threading.get_ident() != thread:
        return lambda: None
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
    """Hide our global hooks from torch.compile's wrapper, which warns that global hooks also run for the wrapper.

    Our hooks count the wrapper as the module, so the warning would mislead.
    """
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
    """Return the frame that calls the running global module hook, or the running callback of `following_module_calls`.

    Its `kwargs` are the keyword arguments of the module's call, which neither receives.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code is WATCHED_CALL or frame.f_code.co_filename == nn.modules.module.__file__
    ):
        frame = frame.f_back
    return frame


CallStack = list[list[Any]]
"""The running module calls; each is a list that begins with the module."""

_stacks: dict[int, tuple[CallStack, ...]] = {}  # by thread
_followers: dict[int, tuple[tuple[Before, After], ...]] = {}  # by thread
_OTHERS = 0  # the key of the followers for all threads that have none of their own
_wrapped_call = nn.Module._wrapped_call_impl
_original: CodeType = _wrapped_call.__code__


@contextmanager
def stacking_module_calls(calls: CallStack) -> Iterator[None]:
    """Keep a stack of the running module calls of this thread, their hooks included.

    This costs a fraction of global hooks, which make torch leave the fast path of a call. Meanwhile the function behind
    `Module.__call__` has another code object. Setting the attribute instead would change the version of Module's type,
    and from Python 3.13 on a type whose version has changed a thousand times stays slow.
    """
    with _installed(_stacks, calls, threading.get_ident()):
        yield


@contextmanager
def following_module_calls(enters: Before, leaves: After, elsewhere: Before | None = None) -> Iterator[None]:
    """Call `enters` before each call of a module in this thread, and `leaves` with its result, or None if it raised.

    Like `stacking_module_calls`, this spares global hooks and what torch does around them. Hooks of the module run
    between the two calls.

    Args:
        enters, leaves: called in this thread.
        elsewhere: called before each call of a module in a thread whose calls nobody follows.
    """
    with ExitStack() as stack:
        if elsewhere is not None:
            stack.enter_context(_installed(_followers, (elsewhere, lambda *_: None), _OTHERS))
        stack.enter_context(_installed(_followers, (enters, leaves), threading.get_ident()))
        yield


@contextmanager
def _installed(installed: dict[int, tuple[Any, ...]], one: object, thread: int) -> Iterator[None]:
    try:  # entered first, because an interrupt may come at any line
        with leaving_lock:
            installed[thread] = (*installed.get(thread, ()), one)
            _set_code()
        with out_of_compiled_code(partial(_without_code, threading.get_ident())):
            yield
    finally:
        with leaving_lock:
            others = tuple([each for each in installed.pop(thread, ()) if each is not one])
            if others:
                installed[thread] = others
            _set_code()


def _watched_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Do the same as `Module.__call__`, and tell the stacks and followers of the thread.

    Only the code object of this function is used; it runs with the globals of `torch.nn.modules.module`.
    """
    thread = _tapescope_thread()  # type: ignore[name-defined]  # noqa: F821
    stacks = _tapescope_stacks.get(thread, ())  # type: ignore[name-defined]  # noqa: F821
    known = _tapescope_followers  # type: ignore[name-defined]  # noqa: F821
    followers = known.get(thread) or known.get(0, ())  # _OTHERS
    for calls in stacks:
        calls.append([self])
    try:
        for enters, _ in followers:
            enters(self, args)
        if self._compiled_call_impl is not None:
            result = self._compiled_call_impl(*args, **kwargs)
        else:
            result = self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    except BaseException:
        for _, leaves in followers:
            leaves(self, args, None)
        raise
    finally:
        for calls in stacks:
            calls.pop()
    for _, leaves in followers:
        leaves(self, args, result)
    return result


WATCHED_CALL = _watched_call.__code__
# Another thread's compiled code may call modules; dynamo does not inspect this frame then.
keep_compiler_out(_watched_call, of_calls=False)


def _set_code() -> None:
    is_watched = bool(_stacks or _followers)
    if is_watched:
        vars(nn.modules.module).update(
            _tapescope_stacks=_stacks, _tapescope_followers=_followers, _tapescope_thread=threading.get_ident
        )
    _wrapped_call.__code__ = WATCHED_CALL if is_watched else _original


def _without_code(thread: int) -> Callable[[], None]:
    if threading.get_ident() != thread:
        return lambda: None
    _wrapped_call.__code__ = _original
    return _set_code


def has_late_hooks(module: nn.Module) -> bool:
    """Return whether hooks may compute anything after the forward in a call of the module."""
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


AroundApply = Callable[[type[Function], tuple[Any, ...], dict[str, Any]], Callable[[Any], None] | None]
_around_apply: list[AroundApply] = []
_apply_lock = threading.Lock()
_original_apply = Function.__dict__["apply"]


@contextmanager
def around_function_apply(around: AroundApply) -> Iterator[None]:
    """Call `around(SomeFunction, args, kwargs)` before each `SomeFunction.apply`, in any thread.

    The function it returns, if any, is called with the result afterwards. torch has no hook for this, so
    `Function.apply` is replaced while at least one watcher is active.
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
        if after is not None:
            after(result)
    return result


def is_generated(function: type[Function]) -> bool:
    """Return whether torch.library generated the Function for a custom operator."""
    return function.__module__ == "torch._library.autograd"


@contextmanager
def watching_batches(
    seen: Callable[[Any], None], waiting: Callable[[int], AbstractContextManager[object]] = nullcontext
) -> Iterator[None]:
    """Call `seen` with each batch of any DataLoader, including loaders whose iteration has already begun.

    `waiting` is called with the loader's number of worker processes, and returns a context in which the batch is
    fetched.
    """
    original = _BaseDataLoaderIter.__next__
    ended = False

    @wraps(original)
    def following(iterator: Any) -> Any:
        if ended:
            return original(iterator)
        with waiting(iterator._num_workers):
            batch = original(iterator)
        if not ended:
            seen(batch)
        return batch

    _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ended = True  # another wrapper may have kept this function and still call it
        if _BaseDataLoaderIter.__next__ is following:
            _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]
