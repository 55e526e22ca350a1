"""torch.compile: keeping it out of our code, detecting compiled code, and running compiled functions uncompiled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._higher_order_ops import utils as higher_order_utils
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

from .thread_state import leave_function_mode


def keep_compiler_out(function: Callable[..., object], *, of_calls: bool = True) -> None:
    """Make torch.compile skip the function, and with `of_calls` also everything it calls.

    `torch.compiler.disable` does the same, but would load the compiler even if nobody uses it.
    """
    code: CodeType = function.__code__
    calls = _FrameAction.SKIP if of_calls else _FrameAction.DEFAULT
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, calls))


Leave = Callable[[], Callable[[], None]]
"""A function that removes something of ours, and returns a function that puts it back."""

_leaving: list[Leave] = []
_refusals: list[tuple[int, str]] = []  # (thread, reason)
leaving_lock = threading.RLock()
_switch: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame


class _InCompiledCode(threading.local):
    """True if this thread runs code under dynamo.

    Attributes:
        come_back: functions that put everything back once dynamo is turned off; None while it is off.
        nested: how often the compiler itself has turned dynamo on since; one less while a compiled graph runs.
    """

    come_back: list[Callable[[], None]] | None = None
    nested = 0


_in_compiled_code = _InCompiledCode()


@contextmanager
def out_of_compiled_code(leave: Leave) -> Iterator[None]:
    """Call `leave` whenever a thread enters code compiled by torch.compile, and the function it returned afterwards.

    Dynamo treats modes and global hooks as part of the program. If one is new, it recompiles, up to its limit; under a
    dispatch mode it never compiles at all. So ours are removed while dynamo inspects frames and checks its guards, and
    put back for functions that run uncompiled in between (`torch.compiler.disable`).
    """
    with leaving_lock:
        _leaving.append(leave)
        _set_switch(_switch, _watched_switch)
    try:
        yield
    finally:
        with leaving_lock:
            _leaving.remove(leave)
            _end_switch()


_TORCH, _ROOT = Path(torch.__file__).parent, Path(__file__).parents[2]
# Not all of _ROOT, because a clone has tests next to the packages.
_PACKAGES = tuple(_ROOT / name for name in ("inspector", "engine", "widgets", "commands"))
_OPERATORS = (_TORCH / "_higher_order_ops", _TORCH / "nn" / "attention")
_COMPILED = (
    "is compiled by torch.compile, which itself chooses the tensors to save and recompute, so {result}; plan and "
    "recompute the model that was passed to torch.compile, or do both under "
    'torch.compiler.set_stance("force_eager"), where it runs uncompiled. Compiled code saves less with '
    "torch._functorch.config.activation_memory_budget"
)
_OPERATOR = (
    "compiles its functions into one operation, so {result}; call it outside of the planned and recomputed code, or "
    "write it as Python control flow"
)


@contextmanager
def compiled_code_refused(result: str) -> Iterator[None]:
    """Raise NotImplementedError if this thread calls compiled code, before any of it has run.

    The same holds for torch.cond, scan and the other operators that compile the functions passed to them. Under
    `torch.compiler.set_stance("force_eager")` compiled functions run uncompiled, and are allowed.

    Args:
        result: the consequence to name in the message, such as "it cannot be recomputed".
    """
    entry = threading.get_ident(), result
    with leaving_lock:
        _refusals.append(entry)
        _set_switch(_switch, _watched_switch)
    try:
        yield
    finally:
        with leaving_lock:
            _refusals.remove(entry)
            _end_switch()


def _end_switch() -> None:
    if not _leaving and not _refusals:
        _set_switch(_watched_switch, _switch)


def _set_switch(old: object, new: object) -> None:
    """Replace the function with which torch turns dynamo on and off for a thread.

    Dynamo reads it from the C module when it is imported, which may be later than this.
    """
    for module in (torch._C._dynamo.eval_frame, sys.modules.get("torch._dynamo.eval_frame")):
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if getattr(module, name, None) is old:
                setattr(module, name, new)


def _watched_switch(callback: object) -> object:
    """Replacement for dynamo's set_eval_frame: `callback` is called for each frame; None turns dynamo off.

    While dynamo runs the callback and compiles, it disables itself without calling this function.
    """
    here = _in_compiled_code
    if callback is None and _refusals and here.come_back is None:
        _refuse(sys._getframe(1))
    prior = _switch(None)  # first, because dynamo inspects every frame that runs while it is on
    if prior is not None and here.come_back is not None:
        if here.nested or _calls_graph(sys._getframe(1)):
            here.nested -= 1
        else:
            back, here.come_back = here.come_back, None
            for each in reversed(back):
                each()
    if callback is not None:
        if here.come_back is None:
            here.come_back = [leave() for leave in reversed(tuple(_leaving))]
        else:
            here.nested += 1
        _switch(callback)
    return prior


def _calls_graph(frame: FrameType) -> bool:
    """Return whether a compiled graph runs next. Dynamo disables itself for it, as for a user's disabled function."""
    if frame.f_code.co_name != "_fn":
        return False
    function = frame.f_locals.get("fn")
    made_by = str(getattr(function, "__module__", None))
    return isinstance(getattr(function, "__self__", None), torch.fx.GraphModule) or made_by.startswith(_COMPILERS)


_COMPILERS = ("torch._functorch", "torch._inductor", "torch._dynamo", "torch.fx")


def _refuse(frame: FrameType) -> None:
    """Raise if a wrapper made by torch.compile is starting; it turns dynamo off before anything else."""
    if frame.f_code.co_name != "compile_wrapper" or "prior" in frame.f_locals:
        return
    thread = threading.get_ident()
    module: Any = sys.modules["torch._dynamo.eval_frame"]
    if module._stance.stance != "force_eager":
        for refused, result in _refusals:
            if refused == thread:
                function = frame.f_locals["fn"]
                operator = _operator_called(function)
                name, why = (_title(function), _COMPILED) if operator is None else (operator, _OPERATOR)
                raise NotImplementedError(f"{name} {why.format(result=result)}")


def _operator_called(function: Any) -> str | None:
    """Return the operator of torch that compiles this function, and the user's line: `cond (net.py:9)`.

    Return None if the user compiles it.
    """
    code = getattr(function, "__code__", None)
    if code is None or not any(map(Path(code.co_filename).is_relative_to, _OPERATORS)):
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None and any(map(Path(frame.f_code.co_filename).is_relative_to, (_TORCH, *_PACKAGES))):
        frame = frame.f_back
    name = function.__qualname__.partition(".")[0]
    return name if frame is None else f"{name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def _title(function: Any) -> str:
    """Return a title for a compiled function: `Net (net.py:12)`."""
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", function)
    code = getattr(type(owner).forward if isinstance(owner, nn.Module) else function, "__code__", None)
    name = type(owner).__name__ if isinstance(owner, nn.Module) else getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


# Skip only this frame: if dynamo also skipped everything it calls, it would turn itself on again at its end.
keep_compiler_out(_watched_switch, of_calls=False)


@contextmanager
def watching_functions(mode: TorchFunctionMode) -> Iterator[None]:
    """Open the mode, except while torch.compile inspects frames."""
    with out_of_compiled_code(partial(_without_mode, mode)), ExitStack() as stack:
        mode.__enter__()  # type: ignore[no-untyped-call]
        stack.callback(leave_function_mode, mode)
        yield


def _without_mode(mode: TorchFunctionMode) -> Callable[[], None]:
    """Remove a mode from this thread's stack, and return a function that puts it back."""
    modes: list[TorchFunctionMode] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    place = next((place for place, each in enumerate(modes) if each is mode), None)
    if place is None:  # a thread without it
        return lambda: None
    _exchange_modes(len(modes) - place, modes[place + 1 :])

    def back() -> None:
        above = _get_current_function_mode_stack()[place:]  # type: ignore[no-untyped-call]
        _exchange_modes(len(above), [mode, *above])

    return back


def _exchange_modes(count: int, modes: Sequence[TorchFunctionMode]) -> None:
    """Replace the innermost `count` modes."""
    for _ in range(count):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module is torch.compile's wrapper, or was compiled in place by `module.compile()`."""
    return isinstance(getattr(module, "_orig_mod", None), nn.Module) or module._compiled_call_impl is not None


def compiled_autograd_is_on() -> bool:
    """Return whether torch.compile has replaced the autograd engine in this process."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.compiled_autograd_enabled or module.in_compiled_autograd_region)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run functions wrapped by torch.compile uncompiled. Existing compilations are kept, and no new ones are made.

    torch.cond, scan and the other operators that take functions compile these themselves, and fail if they cannot. They
    run unchanged, hidden from dispatch modes.
    """
    global _uncompiled
    is_loaded = "torch._dynamo" in sys.modules
    with leaving_lock:
        _uncompiled += 1
        higher_order_utils._set_compilation_env = _prepare_alone
    try:
        with torch.compiler.set_stance("force_eager") if is_loaded else nullcontext():
            yield
    finally:
        with leaving_lock:
            _uncompiled -= 1
            if not _uncompiled:
                higher_order_utils._set_compilation_env = _prepare_operator


_uncompiled = 0  # how often `uncompiled` is open, in all threads
_prepare_operator = higher_order_utils._set_compilation_env


@contextmanager
def _prepare_alone() -> Iterator[None]:
    """Replacement for the context that torch opens around the compilation and the call of such an operator."""
    with _disable_current_modes(), torch.compiler.set_stance("default"), _prepare_operator():
        yield


def runs_uncompiled() -> bool:
    """Return whether functions under torch.compile currently run uncompiled (the stance "force_eager")."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    return eval_frame is not None and eval_frame._stance.stance == "force_eager"


@contextmanager
def activation_memory_budget(share: float) -> Iterator[None]:
    """Set the share of activation memory that torch.compile's partitioner may save for the backward (1: all).

    It applies to functions compiled inside this context.
    """
    from torch._functorch import config

    with config.patch(activation_memory_budget=share):
        yield
