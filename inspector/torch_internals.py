"""Everything of torch that is private, in one place.

tests/inspector/test_torch_internals.py checks each function's promise, so that a torch release which changes one fails
there.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from traceback import FrameSummary
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._C._profiler import CapturedTraceback, gather_traceback, symbolize_tracebacks
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge, register_multi_grad_hook
from torch.autograd.variable import Variable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map_only, tree_map_only_
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import RemovableHandle

if not hasattr(torch.autograd, "_get_sequence_nr"):
    raise ImportError(f"tapehead needs torch >= 2.11; this is torch {torch.__version__}")

sequence_nr: Callable[[], int] = torch.autograd._get_sequence_nr
"""The sequence number which the next node of this thread will get."""


UNNUMBERED = 2**64 - 1
"""The sequence number of each AccumulateGrad: the engine runs them first of all (accumulate_grad.h)."""


def input_metadata(node: Node) -> list[tuple[tuple[int, ...] | None, torch.dtype, torch.device]]:
    """Shape (None for nested tensors), dtype and device of each gradient that `node` takes."""
    found: list[Any] = []
    for meta in node._input_metadata:
        found.append((None if meta.is_nested_tensor else tuple(meta.shape), meta.dtype, meta.device))
    return found


Traceback = CapturedTraceback

_SYMBOLIZED_AT_ONCE = 1000  # stacks: all of a large graph together would take gigabytes


def number_of(node: Node) -> int:
    """The node's own sequence number, also while it is pinned to another."""
    with _pins_lock:  # else a pin could close between the two looks
        for pin in _pins:
            own = pin.own_number(node)
            if own is not None:
                return own
        return current_number(node)


def current_number(node: Node) -> int:
    """The sequence number by which the engine goes."""
    number: int = node._sequence_nr()
    return number


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor of which this one is a view."""
    return tensor._base


def version_of(tensor: Tensor) -> int:
    """How often the tensor was modified in place; -1 for an inference tensor, of which nobody counts it."""
    return -1 if tensor.is_inference() else tensor._version


class Storage(NamedTuple):
    """The bytes below a tensor; `address` is theirs alone as long as they live."""

    address: int
    nbytes: int


def storage_of(tensor: Tensor) -> Storage | None:
    """The tensor's storage; None for those that have none of their own (sparse, nested, not yet initialised)."""
    try:
        storage = tensor.untyped_storage()
        return Storage(storage._cdata, storage.nbytes())
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def set_version(tensor: Tensor, version: int) -> None:
    """Counts the tensor's modifications from here on; for bytes that were put back. Not of an inference tensor."""
    if not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that hold its bytes: itself, or those of which a subclass is made (DTensor); a fake one has none."""
    if not computes_itself(tensor):
        yield tensor
    elif hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            if isinstance(part := getattr(tensor, name), Tensor):  # a DTensor's mesh is among them
                yield from parts_of(part)


def bytes_below(tensor: Tensor) -> torch.UntypedStorage | None:
    """The tensor's storage itself; None for those that have none of their own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):
        return None


def notes_on(node: Node) -> dict[str, Any]:
    """A dict in which anybody may put things about a node; it lives as long as the node does."""
    notes: dict[str, Any] = node.metadata  # type: ignore[assignment]
    return notes


def leaf_of(node: Node) -> Tensor:
    """The leaf whose .grad an AccumulateGrad writes."""
    leaf: Tensor = node.variable  # type: ignore[attr-defined]
    return leaf


def function_of(node: BackwardCFunction) -> type[Function]:
    """The custom Function whose backward the node runs."""
    function: type[Function] = node._forward_cls  # type: ignore[attr-defined]
    return function


def call_node(node: Node, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Calls the node of a C++ or custom Function: its apply and nothing else. One output comes as a tuple too."""
    outputs = node(*gradients) if callable(node) else node.apply(*gradients)  # type: ignore[attr-defined]
    return outputs if type(outputs) is tuple else (outputs,)


def capture_traceback() -> Traceback:
    """The Python stack of the caller, not yet turned into lines: about two microseconds."""
    return gather_traceback(python=True, script=False, cpp=False)


def traceback_frames(traceback: Traceback) -> list[FrameSummary]:
    """The lines of a captured stack, outermost first."""
    (frames,) = frames_of([traceback])
    return frames[::-1]


def frames_of(tracebacks: Sequence[Traceback]) -> Iterator[list[FrameSummary]]:
    """The lines of captured stacks, innermost first. Many together cost a tenth of one by one.

    torch looks for lines of code that Inductor has generated, and loads Inductor to do so: a second or more. Where
    nobody has loaded it, it has generated nothing, and an empty attribute stands in for it.
    """
    for first in range(0, len(tracebacks), _SYMBOLIZED_AT_ONCE):
        loaded = "torch._inductor" in sys.modules
        if not loaded:
            vars(torch)["_inductor"] = None
        try:
            found = symbolize_tracebacks(list(tracebacks[first : first + _SYMBOLIZED_AT_ONCE]))
        finally:
            if not loaded:
                del vars(torch)["_inductor"]
        summaries: dict[int, FrameSummary] = {}  # equal frames are one object
        for stack in found:
            for frame in stack:
                if id(frame) not in summaries:
                    where = frame["filename"], int(frame["line"]), frame["name"]
                    summaries[id(frame)] = FrameSummary(*where, lookup_line=False)
            yield [summaries[id(frame)] for frame in stack]


class SavedSlot(NamedTuple):
    """A tensor that a node keeps. `tensor` is the node's: the user's own, but of an output another one on its storage.

    `maker` is the tensor's `grad_fn`, None where the tensor was modified in place since it was saved.
    """

    name: str
    tensor: Tensor
    maker: Node | None
    modified: bool


def saved_slots(node: Node) -> Iterator[SavedSlot]:
    """The tensors which a node keeps.

    None for a node that was freed, and for what was packed by `saved_tensors_hooks` (checkpoint, save_on_cpu): looking
    at it would run the user's hooks. CopySlices and custom C++ nodes show nothing of what they keep.
    """
    # A Function's class may be made anew in each forward: only those of C++ nodes are worth remembering.
    slots = ("_raw_saved_tensors",) if isinstance(node, BackwardCFunction) else _raw_slots(type(node))
    for raw_name in slots:
        try:
            raw = getattr(node, raw_name)
        except RuntimeError:  # freed
            continue
        many = isinstance(raw, tuple | list)
        raws = raw if many else (raw,)
        if any(each is not None and each.unpack_hook is not None for each in raws):
            continue
        name = raw_name.removeprefix("_raw_saved_")
        modified = False
        try:
            found = getattr(node, "saved_tensors" if name == "tensors" else f"_saved_{name}")
            makers = [None if each is None else each.grad_fn for each in (found if many else (found,))]
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):  # freed
                continue
            makers = [None] * len(raws)
            modified = True
        found = None
        for each, maker in zip(raws, makers, strict=True):
            if each is not None and isinstance(each.data, Tensor):
                yield SavedSlot(name, each.data, maker, modified)


def packed_slots(node: Node) -> Iterator[tuple[str, object]]:
    """Per tensor that `saved_tensors_hooks` packed, the slot's name and what the pack hook gave. Runs no hook."""
    slots = ("_raw_saved_tensors",) if isinstance(node, BackwardCFunction) else _raw_slots(type(node))
    for raw_name in slots:
        try:
            raw = getattr(node, raw_name)
        except RuntimeError:  # freed
            continue
        for each in raw if isinstance(raw, tuple | list) else (raw,):
            if each is not None and each.unpack_hook is not None and each.unpack_hook is not _freed:
                yield raw_name.removeprefix("_raw_saved_"), each.data


@cache
def _raw_slots(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def saved_numbers(node: Node) -> dict[str, float]:
    """The numbers which a C++ node keeps beside its tensors: an exponent, an epsilon."""
    if isinstance(node, BackwardCFunction):
        return {}
    tensors = {name.replace("_raw_saved_", "_saved_") for name in _raw_slots(type(node))}  # to unpack them runs hooks
    found = {}
    for name in _kept_names(type(node)):
        value = None if name in tensors else getattr(node, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name.removeprefix("_saved_")] = value
    return found


def saved_value(node: Node, name: str, otherwise: Any = None) -> Any:
    """What a C++ node keeps under this name that is no tensor: alpha, stride, sizes. Unpacks nothing."""
    return getattr(node, f"_saved_{name}", otherwise)


def saved_tensor(node: Node, name: str) -> Tensor:
    """What a C++ node has saved under this name. Raises torch's error where it was freed or modified since."""
    found: Tensor = getattr(node, f"_saved_{name}")
    return found


AroundApply = Callable[[type[Function], tuple[Any, ...], dict[str, Any]], Callable[[Any], None]]
_around_apply: list[AroundApply] = []
_apply_lock = threading.Lock()
_original_apply = Function.__dict__["apply"]


def leave_function_mode(mode: TorchFunctionMode) -> None:
    """Takes a mode off this thread's stack, wherever in it that is; if it is not there, nothing happens."""
    above: list[TorchFunctionMode] = []
    while any(each is mode for each in _get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
        top = _pop_mode()  # type: ignore[no-untyped-call]
        if top is mode:
            break
        above.append(top)
    for each in reversed(above):
        _push_mode(each)  # type: ignore[no-untyped-call]


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


def is_operator(function: object) -> bool:
    """Whether it is one operator of `torch.ops`, with a schema."""
    return isinstance(function, OpOverload)


def schema_names(function: object) -> tuple[str, ...] | None:
    """What an operator of `torch.ops` calls its arguments; None for anything else."""
    if isinstance(function, OpOverloadPacket):
        function = getattr(function, "default", None)
    if not isinstance(function, OpOverload):
        return None
    return tuple(argument.name for argument in function._schema.arguments if not argument.kwarg_only)


def keep_compiler_out(function: Callable[..., object]) -> None:
    """When compiled code calls the function, torch.compile looks neither into it nor into what it calls.

    As `torch.compiler.disable` does, which would load the compiler where nobody uses it.
    """
    code: CodeType = function.__code__
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


Leave = Callable[[], Callable[[], None]]
"""Takes something of ours away, and returns what puts it back."""

_leaving: list[Leave] = []
_refusals: list[tuple[int, str]] = []  # with the thread of each
_leaving_lock = threading.RLock()
_switch: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame


class _InCompiledCode(threading.local):
    """Where this thread is.

    Attributes:
        come_back: puts back what has left, once dynamo is turned off; None: it is not on.
        nested: how often it was turned on since, by the compiler itself; less by one while a compiled graph runs.
    """

    come_back: list[Callable[[], None]] | None = None
    nested = 0


_in_compiled_code = _InCompiledCode()


@contextmanager
def out_of_compiled_code(leave: Leave) -> Iterator[None]:
    """Calls `leave` whenever a thread goes into code that torch.compile compiles, and what it returned afterwards.

    Dynamo takes modes and global hooks for a part of the program: it compiles all over again where one was not there
    before, up to its limit, and nothing at all under a dispatch mode, for ever. What is away while dynamo looks at
    frames and checks its guards is nothing to it. Back it comes for what runs uncompiled in between: functions that
    `torch.compiler.disable` keeps out.
    """
    with _leaving_lock:
        _leaving.append(leave)
        _set_switch(_switch, _watched_switch)
    try:
        yield
    finally:
        with _leaving_lock:
            _leaving.remove(leave)
            _end_switch()


@contextmanager
def compiled_code_refused(why: str) -> Iterator[None]:
    """Meanwhile this thread can call nothing that torch.compile has made: it raises NotImplementedError before any of
    it has run. `torch.compiler.set_stance("force_eager")` lets it run, uncompiled.

    Args:
        why: a sentence without the stop, which goes on after the name of what was called.
    """
    entry = threading.get_ident(), why
    with _leaving_lock:
        _refusals.append(entry)
        _set_switch(_switch, _watched_switch)
    try:
        yield
    finally:
        with _leaving_lock:
            _refusals.remove(entry)
            _end_switch()


def _end_switch() -> None:
    if not _leaving and not _refusals:
        _set_switch(_watched_switch, _switch)


def _set_switch(old: object, new: object) -> None:
    """Wherever torch calls the switch that turns dynamo on and off for a thread, another one is called.

    Dynamo takes it from the C module as it is imported, which may be later than this.
    """
    for module in (torch._C._dynamo.eval_frame, sys.modules.get("torch._dynamo.eval_frame")):
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if getattr(module, name, None) is old:
                setattr(module, name, new)


def _watched_switch(callback: object) -> object:
    """In place of dynamo's switch: `callback` is what it calls for each frame, None turns it off.

    While it calls that, and compiles, it is off without this having been called, and nothing comes back.
    """
    here = _in_compiled_code
    if callback is None and _refusals and here.come_back is None:
        _refuse(sys._getframe(1))
    prior = _switch(None)  # before anything else: it looks at each frame that runs meanwhile
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
    """Whether what runs next is a compiled graph: dynamo keeps itself out of it as users do of a function of theirs."""
    if frame.f_code.co_name != "_fn":
        return False
    function = frame.f_locals.get("fn")
    made_by = str(getattr(function, "__module__", None))
    return isinstance(getattr(function, "__self__", None), torch.fx.GraphModule) or made_by.startswith(_COMPILERS)


_COMPILERS = ("torch._functorch", "torch._inductor", "torch._dynamo", "torch.fx")


def _refuse(frame: FrameType) -> None:
    """Raises where a wrapper that torch.compile has made begins: it turns dynamo off before it does anything else."""
    if frame.f_code.co_name != "compile_wrapper" or "prior" in frame.f_locals:
        return
    thread = threading.get_ident()
    module: Any = sys.modules["torch._dynamo.eval_frame"]
    if module._stance.stance != "force_eager":
        for refused, why in _refusals:
            if refused == thread:
                raise NotImplementedError(f"{_title(frame.f_locals['fn'])} {why}")


def _title(function: Any) -> str:
    """What torch.compile was given: `Net (net.py:12)`."""
    function = getattr(function, "__wrapped__", function)
    owner = getattr(function, "__self__", function)
    code = getattr(type(owner).forward if isinstance(owner, nn.Module) else function, "__code__", None)
    name = type(owner).__name__ if isinstance(owner, nn.Module) else getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


# Dynamo looks past this frame alone: past all that it calls, it would turn itself on again as it ends.
set_code_exec_strategy(_watched_switch.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))


@contextmanager
def watching_functions(mode: TorchFunctionMode) -> Iterator[None]:
    """The mode is open, but not while torch.compile looks at frames."""
    with out_of_compiled_code(partial(_without_mode, mode)), ExitStack() as stack:
        mode.__enter__()  # type: ignore[no-untyped-call]
        stack.callback(leave_function_mode, mode)
        yield


def _without_mode(mode: TorchFunctionMode) -> Callable[[], None]:
    """Takes a mode out of this thread's stack."""
    modes: list[TorchFunctionMode] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    place = next((place for place, each in enumerate(modes) if each is mode), None)
    if place is None:  # a thread without it
        return _nothing
    _exchange_modes(len(modes) - place, modes[place + 1 :])

    def back() -> None:
        above = _get_current_function_mode_stack()[place:]  # type: ignore[no-untyped-call]
        _exchange_modes(len(above), [mode, *above])

    return back


def _exchange_modes(count: int, modes: Sequence[TorchFunctionMode]) -> None:
    """Others stand in place of the innermost modes."""
    for _ in range(count):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


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
        handle = nn.modules.module.register_module_forward_pre_hook(before)
        stack.callback(handle.remove)
        dicts.append((nn.modules.module._global_forward_pre_hooks, handle.id))
        if after is not None:
            handle = nn.modules.module.register_module_forward_hook(after, always_call=True)
            stack.callback(handle.remove)
            dicts.append((nn.modules.module._global_forward_hooks, handle.id))
            dicts.append((nn.modules.module._global_forward_hooks_always_called, handle.id))
        stack.enter_context(_no_hooks_of_users({number for _, number in dicts}))
        stack.enter_context(out_of_compiled_code(partial(_without_hooks, dicts, thread)))
        yield


def _without_hooks(dicts: Sequence[tuple[dict[int, Any], int]], thread: int) -> Callable[[], None]:
    """Takes hooks out of their dicts."""
    if threading.get_ident() != thread:
        return _nothing
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
    with _leaving_lock:
        _our_hooks.update(numbers)
        nn.modules.module._has_any_global_hook = _users_have_global_hooks
    try:
        yield
    finally:
        with _leaving_lock:
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


def _nothing() -> None:
    pass


EngineRun = Callable[..., tuple[Tensor, ...]]
Redirect = Callable[[Sequence[Tensor | GradientEdge], Sequence[Tensor | None], bool, bool, Sequence[Any]], None]
"""Gets tensors, gradients, retain_graph, create_graph and inputs of a backward, as torch completed them."""

_DOOR = "_engine_run_backward"


class _Passage(threading.local):
    """Whether the next backward of this thread goes past the redirect."""

    granted = False


_passage = _Passage()
_redirected = False


def redirect_backward(redirect: Redirect) -> Callable[[], None]:
    """From now on all backwards of the process call `redirect` in the engine's place. Returns what ends that.

    It stands in front of the engine, behind `torch.autograd.backward`: torch has then completed the arguments, tensor
    subclasses have had their say, and those who imported `backward` by name are redirected too. `torch.autograd.grad`
    is not.
    """
    global _redirected
    beneath: EngineRun = getattr(torch.autograd, _DOOR)
    ended = False

    def run_redirected(outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        if ended:  # others wrapped the engine meanwhile, and have this in their chain for good
            return beneath(outputs, *args, **kwargs)
        if _passage.granted or not kwargs["accumulate_grad"]:
            _passage.granted = False
            return beneath(outputs, *args, **kwargs)
        redirect(outputs, *args)
        return ()

    def end() -> None:
        nonlocal ended
        global _redirected
        ended = True
        _redirected = False
        for module in doors:
            if getattr(module, _DOOR) is run_redirected:
                setattr(module, _DOOR, beneath)

    keep_compiler_out(run_redirected)
    # torch.compiler's own replacement takes the engine from the one module and puts it back into both.
    doors = torch.autograd, torch.autograd.graph
    _redirected = True
    for module in doors:
        setattr(module, _DOOR, run_redirected)
    return end


def torch_backward(*args: Any, **kwargs: Any) -> None:
    """`torch.autograd.backward` past `redirect_backward`. What runs inside of it is redirected again."""
    _passage.granted = _redirected
    try:
        torch.autograd.backward(*args, **kwargs)
    finally:
        _passage.granted = False


T = TypeVar("T")

_pins: list[Pin] = []
_pins_lock = threading.RLock()
_TOP = 2**63  # above each pinned number
_ROOM = 2**20  # between two of them, for those of a pin inside this one


class Pin:
    """While it is open the engine runs `nodes` in this order, where edges allow it; then their own numbers come back.

    The engine's ready queue pops the highest sequence number first (engine.h, CompareNodeTaskTime). Several pins may be
    open, in threads of their own or one inside the other, and share nodes: the AccumulateGrad of a common parameter. A
    node that another pin holds keeps its number where the rest can be numbered around it, as in two backwards of one
    model. Else it gets a new one, and the other pin is `disturbed`: while the node waits in the other backward's queue,
    that queue is not sorted again, and its order may not hold for the shared nodes. In one thread, where a backward in
    a hook disturbs the one around it, `settle_queue` mends that.

    Args:
        nodes: in their order.
        waiting: how many of them may wait in the engine's queue at once.
    """

    __slots__ = ("_index", "_nodes", "_numbers", "_own", "disturbed", "thread", "waiting")

    def __init__(self, nodes: Sequence[Node], waiting: Callable[[], int] = lambda: 0) -> None:
        self.disturbed = False
        self.waiting = waiting
        self.thread = 0
        self._nodes = nodes
        self._own: list[int] = []
        self._numbers: list[int] = []
        self._index: dict[Node, int] | None = None  # made when a second pin opens

    def during(self, run: Callable[[], T]) -> T:
        """Calls `run` while the pin is open. An interrupt, wherever it comes, leaves no pin open."""
        try:
            try:
                self.open()
                return run()
            finally:
                self.close()
        finally:  # for an interrupt in the first
            self.close()

    def open(self) -> None:
        """To be called where a `finally` closes it, whatever comes in here."""
        self.thread = threading.get_ident()
        with _pins_lock:
            if _pins:
                self._own = [number_of(node) for node in self._nodes]
                self._numbers = self._chosen()
            else:
                self._own = [node._sequence_nr() for node in self._nodes]
                self._numbers = list(range(len(self._nodes) * _ROOM, 0, -_ROOM))
            _pins.append(self)
            _set_numbers(self._nodes, self._numbers)

    def close(self) -> None:
        """Does nothing where the pin is not open. Interrupted, it can be called again."""
        with _pins_lock:
            if self in _pins:
                self._give_back()
                _pins.remove(self)

    def own_number(self, node: Node) -> int | None:
        """The number which the node had before any pin; None for a node that this one does not hold."""
        place = self._places().get(node)
        return None if place is None else self._own[place]

    def take_back(self) -> None:
        """Gives the nodes this pin's numbers again, which other pins have changed."""
        with _pins_lock:
            for node, number in zip(self._nodes, self._numbers, strict=True):
                if current_number(node) != number:
                    self.number(node, number)
                    for pin in _pins:
                        if pin is not self and node in pin._places():
                            pin.disturbed = True
            self.disturbed = False

    def reorder(self, nodes: Sequence[Node]) -> None:
        """These of the nodes shall run in this order, which is not that of those that wait in the engine's queue."""
        numbers = falling_numbers(len(nodes), {})
        assert numbers is not None, "2**63 numbers are enough"
        for node, number in zip(nodes, numbers, strict=True):
            self.number(node, number)

    def number(self, node: Node, number: int) -> None:
        """Gives one of the nodes another number. In vain while the node waits in the engine's queue.

        Before the pin is open nothing happens.
        """
        if not self._numbers:
            return
        with _pins_lock:
            self._numbers[self._places()[node]] = number
            node._set_sequence_nr(number)  # type: ignore[attr-defined]

    def _places(self) -> dict[Node, int]:
        if self._index is None:
            self._index = {node: place for place, node in enumerate(self._nodes)}
        return self._index

    def _chosen(self) -> list[int]:
        sharing = {pin: found for pin in _pins if (found := [node for node in self._nodes if node in pin._places()])}
        held = {node for found in sharing.values() for node in found}
        fixed = {place: current_number(node) for place, node in enumerate(self._nodes) if node in held} if held else {}
        numbers = falling_numbers(len(self._nodes), fixed)
        if numbers is None:
            for pin in sharing:
                pin.disturbed = True
            numbers = falling_numbers(len(self._nodes), {})
        assert numbers is not None, "2**63 numbers are enough"
        return numbers

    def _give_back(self) -> None:
        others = [pin for pin in reversed(_pins) if pin is not self]
        if not others:
            _set_numbers(self._nodes, self._own)
            return
        for node, own in zip(self._nodes, self._own, strict=True):
            holder = next((pin for pin in others if node in pin._places()), None)
            number = own if holder is None else holder._numbers[holder._places()[node]]
            node._set_sequence_nr(number)  # type: ignore[attr-defined]


def falling_numbers(count: int, fixed: Mapping[int, int]) -> list[int] | None:
    """So many numbers, each less than the one before, with room between them; some are `fixed`. None if impossible."""
    numbers: list[int] = []
    place, high = -1, _TOP
    for next_place, low in [*sorted(fixed.items()), (count, 0)]:
        step = (high - low) // (next_place - place)
        if step < 1:
            return None
        numbers.extend(range(high - step, high - step * (next_place - place), -step))
        numbers.append(low)
        place, high = next_place, low
    del numbers[count:]
    return numbers


def _set_numbers(nodes: Sequence[Node], numbers: Sequence[int]) -> None:
    for node, number in zip(nodes, numbers, strict=True):
        node._set_sequence_nr(number)  # type: ignore[attr-defined]


def set_number(node: Node, number: int) -> None:
    """Gives a node that nobody has pinned another sequence number."""
    _set_numbers([node], [number])


def make_numbers(count: int) -> None:
    """Uses up so many sequence numbers of this thread."""
    with unobserved(), torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True, device="cpu")
        for _ in range(count):
            leaf.view(())


def settle_queue() -> None:
    """After a backward in a hook, which may have disturbed those around it: puts the engine's queue in order."""
    around = [pin for pin in tuple(_pins) if pin.thread == threading.get_ident()]
    if any(pin.disturbed for pin in around) and _real_graph_task_id() >= 0:
        sort_queue_again(sum(pin.waiting() for pin in around))
        for pin in around:
            pin.disturbed = False


def pins_open() -> bool:
    """Whether any node's number may be pinned."""
    return bool(_pins)


def compiled_autograd_is_on() -> bool:
    """Whether torch.compile has replaced the autograd engine in this process."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.compiled_autograd_enabled or module.in_compiled_autograd_region)


Hooks = list[Callable[..., Any]]


def node_hooks(node: Node) -> tuple[Hooks, Hooks]:
    """The Python pre-hooks (`register_prehook`) and post-hooks (`register_hook`) of a node, in running order.

    torch lists them nowhere, but a handle knows the dict in which it stands.
    """
    return _hooks_of(own(node.register_prehook(_no_hook))), _hooks_of(own(node.register_hook(_no_hook)))


def hook_dicts(node: Node) -> list[dict[int, Any]]:
    """The dicts in which those hooks stand, by the numbers of their handles; those that have any."""
    found = []
    for register in (node.register_prehook, node.register_hook):
        handle = own(register(_no_hook))
        hooks: dict[int, Any] | None = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            found.append(hooks)
    return found


def _no_hook(*args: Any) -> None:
    """Is taken away at once, and does no harm where an interrupt prevents that."""


def _hooks_of(handle: RemovableHandle) -> Hooks:
    try:
        hooks = handle.hooks_dict_ref()
    finally:
        handle.remove()
    return [hook for hook in hooks.values() if hook is not refuse_spent] if hooks else []


_own_handles = itertools.count(1)  # counts without a lock
_owned = 0


def own(handle: RemovableHandle) -> RemovableHandle:
    """Notes that a hook is ours, not the user's."""
    global _owned
    _owned = next(_own_handles)
    return handle


def hooks_registered() -> int:
    """How many hooks users have registered in this process so far; those that were removed, too."""
    return RemovableHandle.next_id - _owned


def run_engine(
    roots: Sequence[GradientEdge],
    gradients: Sequence[Tensor],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[GradientEdge] = (),
    accumulate: bool = False,
) -> tuple[Tensor | None, ...]:
    """One run of the engine (`THPEngine_run_backward`). With `inputs` it gives their gradients, or accumulates them."""
    found: tuple[Tensor | None, ...] | None = _real_engine.run_backward(
        tuple(roots), tuple(gradients), keep_graph, create_graph, tuple(inputs), True, accumulate
    )
    return found or ()


class _Retains(BaseException):
    """A gradient is retained."""


class _NoClones(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises where a tensor would be copied, as the engine does for a gradient that is retained."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in InFloat64

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.clone.default:
            raise _Retains
        return operator(*args, **(kwargs or {}))


def retains_any(nodes: Sequence[Node]) -> bool:
    """Whether a tensor that one of these nodes made is told to retain its gradient (`Tensor.retain_grad`).

    torch lists no such tensors. Each node is shown zeros, as root and wanted input of a run of the engine of its own,
    which executes nothing: with several at once those between two of them would run. It would call hooks of tensors,
    too: only for where there are none.
    """
    try:
        with _NoClones():  # type: ignore[no-untyped-call]
            for node in nodes:
                edges, zeros = [], []
                for number, (shape, dtype, device) in enumerate(input_metadata(node)):
                    if shape is not None:
                        edges.append(GradientEdge(node, number))
                        zeros.append(torch.zeros((), dtype=dtype, device=device).expand(shape))
                if edges:
                    run_engine(edges, zeros, True, False, edges)
    except _Retains:
        return True
    return False


class StandIn(Protocol):
    """A backward of our own, which answers in the engine's place what user code asks about the one under way."""

    number: int | None
    first_number: int | None  # before it was said to be another backward
    node: Node | None
    limited: bool  # by inputs=
    accumulated_inside: bool  # user code ran a backward inside, which added to .grad

    def body(self) -> None: ...

    def will_execute(self, node: Node) -> bool: ...

    def execution_order(self) -> list[Node]: ...

    def queue_callback(self, callback: Callable[[], None]) -> None: ...


class _Thread(threading.local):
    """Of one thread: who answers, innermost last, None where a real backward runs inside; and a leaf to start from."""

    def __init__(self) -> None:
        self.answering: list[StandIn | None] = []
        with torch.inference_mode(False), torch.enable_grad(), unobserved():
            self.leaf = torch.zeros((), requires_grad=True, device="cpu")
            self.edge = get_gradient_edge(self.leaf)
            self.one = torch.ones((), device="cpu")
        self.edge.node.register_prehook(_run_body)

    def stand_in(self) -> StandIn | None:
        return self.answering[-1] if self.answering else None


def _run_body(gradients: tuple[Tensor | None, ...]) -> tuple[None]:
    stand_in = _thread.stand_in()
    if stand_in is not None:
        stand_in.body()
    return (None,)


def is_own(hooks: Mapping[int, Any]) -> bool:
    """Whether all of these are ours: of the leaf from which we start the engine, or of a node that is spent."""
    codes = _run_body.__code__, refuse_spent.__code__  # equal once the module has been reloaded, too
    return all(getattr(hook, "__code__", None) in codes for hook in hooks.values())


_real_graph_task_id = torch._C._current_graph_task_id
_real_current_node = torch._C._current_autograd_node
_real_will_execute = torch._C._will_engine_execute_node
_real_execution_order = torch._C._current_graph_task_execution_order  # type: ignore[attr-defined]
_real_engine = Variable._execution_engine


def _graph_task_id() -> int:
    stand_in = _thread.stand_in()
    if stand_in is None or stand_in.number is None:
        return _real_graph_task_id()
    counts = sys._getframe(1).f_globals.get("__name__") == _MULTI_GRAD_HOOKS
    return stand_in.first_number if counts and stand_in.first_number is not None else stand_in.number


_MULTI_GRAD_HOOKS = register_multi_grad_hook.__module__
"""Hooks on several tensors count within one backward, also where checkpoints are told that it is another one."""


def current_node() -> Node | None:
    """The node whose backward this thread runs, in a backward of PyTorch's engine or of our own."""
    stand_in = _thread.stand_in()
    return _real_current_node() if stand_in is None else stand_in.node


def _will_execute(node: Node) -> bool:
    stand_in = _thread.stand_in()
    return _real_will_execute(node) if stand_in is None else stand_in.will_execute(node)


def _execution_order() -> list[Node]:
    stand_in = _thread.stand_in()
    return _real_execution_order() if stand_in is None else stand_in.execution_order()


class _Engine(type(_real_engine)):  # type: ignore[misc]
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        depth = len(_thread.answering)
        stand_in = _thread.stand_in()
        if stand_in is not None and bool(args[6] if len(args) > 6 else kwargs.get("accumulate_grad")):
            stand_in.accumulated_inside = True
        try:
            _thread.answering.append(None)
            return _real_engine.run_backward(*args, **kwargs)
        finally:
            del _thread.answering[depth:]

    def is_checkpoint_valid(self) -> bool:
        stand_in = _thread.stand_in()
        return bool(_real_engine.is_checkpoint_valid()) and (stand_in is None or not stand_in.limited)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        stand_in = _thread.stand_in()
        if stand_in is None:
            _real_engine.queue_callback(callback)
        else:
            stand_in.queue_callback(callback)


_engine = _Engine()


def run_as_backward(stand_in: StandIn, keep_graph: bool, create_graph: bool) -> None:
    """Calls `stand_in.body` inside a run of the engine, from the pre-hook of a leaf of this thread.

    Meanwhile the stand-in answers in this thread: which graph task runs, which node, will that node run, and takes
    callbacks for the end of the backward. `register_multi_grad_hook`, checkpoints and FSDP ask for these. The functions
    that they ask are replaced as long as any thread has a stand-in; where none answers, torch's own do. So it does no
    harm if an interrupt leaves them in place.
    """
    depth = len(_thread.answering)
    try:
        with _standing_lock:
            _standing.append(stand_in)
            _answer(_graph_task_id, current_node, _will_execute, _execution_order, _engine)
        _thread.answering.append(stand_in)
        run_engine([_thread.edge], [_thread.one], keep_graph, create_graph, accumulate=True)
    finally:
        del _thread.answering[depth:]
        with _standing_lock:
            if stand_in in _standing:
                _standing.remove(stand_in)
            if not _standing:
                _answer(
                    _real_graph_task_id, _real_current_node, _real_will_execute, _real_execution_order, _real_engine
                )


_standing: list[StandIn] = []
_standing_lock = threading.Lock()


def _answer(number: Any, node: Any, will_execute: Any, order: Any, engine: Any) -> None:
    """Has torch's questions answered by these."""
    torch._C._current_graph_task_id = number
    torch._C._current_autograd_node = node
    torch._C._will_engine_execute_node = will_execute
    torch._C._current_graph_task_execution_order = order  # type: ignore[attr-defined]
    Variable._execution_engine = engine


def real_graph_task_id() -> int:
    """Which run of the engine this is, whatever a stand-in says. -1 outside."""
    return _real_graph_task_id()


def queue_engine_callback(callback: Callable[[], None]) -> None:
    """Lets the engine call this at the end of the run which is under way."""
    _real_engine.queue_callback(callback)


def owned_alone(tensors: Sequence[Tensor | None], number: int, others: int = 0) -> bool:
    """Whether nothing but this sequence, and so many other references of Python's, holds its tensor number `number`.

    The C++ side counts one reference for all of Python's, which Python counts itself.
    """
    tensor = tensors[number]
    if tensor is None or tensor._use_count() != 1:  # type: ignore[attr-defined]
        return False
    del tensor
    return sys.getrefcount(tensors[number]) == _ALONE + others


_ALONE = sys.getrefcount([object()][0]) + 1  # what a sequence adds to a reference of the call's own


def storage_owned_alone(tensor: Tensor) -> bool:
    """Whether no other tensor, nor a saved one, uses the storage."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2  # the tensor, and the storage looked at


def kept_by_others(tensors: Sequence[Tensor]) -> list[bool]:
    """Of tensors that nodes keep: whether anything besides these nodes keeps the bytes of each alive.

    That may be a variable, another graph, a hook, an AccumulateGrad (each leaf's). References are counted: to the
    tensors, to those of which they are views, and to the storages. What a node hides (see `saved_slots`) is unknown
    here, and counts as something else. Of a tensor without a storage of its own it is told of the tensor alone.

    Args:
        tensors: one for each slot, as `saved_slots` gives them. The caller must have no other reference to any.
    """
    usual, usual_of_storage = _references_of_one()
    with without_torch_function():
        spare, of_storages = _spare_references(tensors)
    held = {address for address, counts in of_storages.items() if counts != usual_of_storage}
    held.update(address for address, counts in spare.values() if counts != usual and address is not None)
    found = []
    for number in map(id, tensors):
        address, counts = spare[number]
        found.append(counts != usual if address is None else address in held)
    return found


_Counts = tuple[int, int]  # references from C++, and from Python


def _spare_references(tensors: Sequence[Tensor]) -> tuple[dict[int, tuple[int | None, _Counts]], dict[int, _Counts]]:
    """How many references there are to tensors and storages, less one from each slot, each view and each tensor.

    What is left is equal for all that nothing else holds: the references of this function, and those by which the
    Python object and its C++ side hold each other. By `id` the address of the tensor's storage and the references to
    the tensor, and by address those to the storage.
    """
    distinct = {id(tensor): tensor for tensor in tensors}
    bases = [base for base in map(base_of, distinct.values()) if base is not None]  # each view holds its base
    slots = Counter(map(id, tensors))
    slots.update(map(id, bases))
    distinct.update((id(base), base) for base in bases)
    addresses: dict[int, int | None] = {}
    storages = {}
    for number in distinct:
        try:
            storage = distinct[number].untyped_storage()
        except (NotImplementedError, RuntimeError, ValueError):
            addresses[number] = None
            continue
        addresses[number] = storage._cdata
        storages[storage._cdata] = storage
        del storage
    users = Counter(addresses.values())
    spare = {}
    for number, count in slots.items():
        uses = distinct[number]._use_count()  # type: ignore[attr-defined]
        spare[number] = addresses[number], (uses - count, sys.getrefcount(distinct[number]) - count)
    of_storages = {}
    for address in storages:
        uses = torch._C._storage_Use_Count(address)
        of_storages[address] = uses - users[address], sys.getrefcount(storages[address])
    return spare, of_storages


@cache
def _references_of_one() -> tuple[_Counts, _Counts]:
    """The spare references of a tensor which one node keeps and nothing else, and of its storage."""
    with unobserved(), torch.inference_mode(False), torch.enable_grad():
        result = torch.ones((), requires_grad=True) * torch.ones(())
    assert result.grad_fn is not None
    spare, of_storages = _spare_references([slot.tensor for slot in saved_slots(result.grad_fn)])
    ((_, counts),) = spare.values()
    (of_storage,) = of_storages.values()
    return counts, of_storage


def post_accumulate_hooks(leaf: Tensor) -> Hooks:
    """The hooks of `leaf.register_post_accumulate_grad_hook`, in running order."""
    return list((leaf._post_accumulate_grad_hooks or {}).values())


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


def _freed(packed: int) -> Tensor:
    raise RuntimeError(FREED)


def refuse_spent(*gradients: Any) -> None:
    """The pre-hook of a node that has run and still keeps what it saved: see `SpentNodes`."""
    raise RuntimeError(FREED)


def saved_variables(node: Node) -> list[Any]:
    """What a C++ node keeps, as torch's SavedTensor objects. Empty for a node that hides it: see `hides_saved`."""
    found: list[Any] = []
    try:
        for name in _raw_slots(type(node)):
            raw = getattr(node, name)
            if type(raw) is tuple:
                found.extend(raw)
            else:
                found.append(raw)
    except RuntimeError:  # freed
        return []
    return [each for each in found if each is not None]


def free_saved(saved: Sequence[Any]) -> None:
    """Lets go of saved tensors as the engine does after a task (`release_variables`): a second use raises its error.

    Hooks take the tensor's place, since Python can't reset it. What has hooks of the user's stays as it is.
    """
    with unobserved() if torch._C._len_torch_dispatch_stack() else nullcontext():  # hooks are given a detached tensor
        for each in saved:
            try:  # noqa: SIM105  (a context for each would cost more than the rest)
                each.register_hooks(id, _freed)
            except RuntimeError:  # has hooks, or is an optional tensor that was never there
                pass


def packed_by_user(saved: Sequence[Any]) -> bool:
    """Whether `saved_tensors_hooks` were at work when the node saved these: checkpoint, save_on_cpu.

    They are at work for all that a node saves, or for nothing; but what was never there is not packed.
    """
    for each in saved:  # `any` would take twice as long
        hook = each.unpack_hook
        if hook is not None and hook is not _freed:
            return True
    return False


def unpacking(node: Node) -> Iterator[object]:
    """What `saved_tensors_hooks` unpack a node's tensors with: the hooks, and what they packed. Runs none."""
    if not isinstance(node, BackwardCFunction):
        saved = saved_variables(node)
    else:
        saved = () if function_is_freed(node) else node._raw_saved_tensors
    for each in saved:
        hook = None if each is None else each.unpack_hook
        if hook is not None and hook is not _freed:
            yield hook
            yield each.data


def saves_subclass(saved: Sequence[Any]) -> bool:
    """Whether one of these is a tensor that runs operations in its own way (see `computes_itself`)."""
    for each in saved:
        if each.unpack_hook is None and type(each.data) not in _PLAIN and isinstance(each.data, Tensor):
            return computes_itself(each.data)
    return False


_PLAIN = Tensor, torch.nn.Parameter, type(None)


def hidden_functions(nodes: Collection[Node]) -> dict[Node, BackwardCFunction]:
    """By CopySlices among these the node of the custom Function that wrote the slices in place, and is hidden in it.

    They are found among what Python's garbage collector tracks. The CopySlices has their edges, but that the first one
    leads to what the tensor was before, and theirs leads there through views.
    """
    slices = {node: node.next_functions for node in nodes if type(node).__name__ == "CopySlices"}
    if not slices:
        return {}
    functions = [each for each in gc.get_objects() if issubclass(type(each), BackwardCFunction)]
    return {
        node: function
        for node, (base, *others) in slices.items()
        for function in functions
        if list(function.next_functions[1:]) == others and _leads(function.next_functions[:1], base[0])
    }


_MOST_VIEWS = 64  # one of the other


def _leads(edges: Sequence[tuple[Node | None, int]], to: Node | None) -> bool:
    """Whether the first edges lead to a node."""
    for _ in range(_MOST_VIEWS):
        if not edges or edges[0][0] is to:
            break
        edges = () if edges[0][0] is None else edges[0][0].next_functions
    return bool(edges) and edges[0][0] is to


def is_packed(node: Node) -> bool:
    """`packed_by_user` of all that a C++ or custom Function's node keeps."""
    if isinstance(node, BackwardCFunction):
        try:
            return packed_by_user([each for each in node._raw_saved_tensors if each is not None])
        except RuntimeError:  # freed
            return False
    return packed_by_user(saved_variables(node))


def hides_saved(node: Node) -> bool:
    """Whether Python can't see what the node keeps: the one inside a CopySlices, and C++ nodes of extensions."""
    kind = type(node)
    return kind.__name__ in ("CopySlices", "CppFunction")


def holds_saved(node: Node) -> bool:
    """Whether a node keeps a tensor that a backward would free, so that a second one would raise there. Of what hides
    it that is taken for granted. Runs no hook."""
    if hides_saved(node):
        return True
    if isinstance(node, BackwardCFunction):
        return not function_is_freed(node) and any(each is not None for each in node._raw_saved_tensors)
    return any(each.unpack_hook not in (None, _freed) or _is_there(each) for each in saved_variables(node))


def _is_there(saved: Any) -> bool:
    """Of a tensor without hooks: whether there is one. An optional one may never have been."""
    return saved.unpack_hook is None and saved.data is not None


def free_function(node: Node) -> None:
    """Lets a custom Function's node free what it saved, unless the backward under way keeps the graph."""
    node.maybe_clear_saved_tensors()  # type: ignore[attr-defined]


def function_is_freed(node: Node) -> bool:
    """Whether a custom Function's node has freed what it saved. Runs no hooks of `saved_tensors_hooks`."""
    try:
        node._raw_saved_tensors  # type: ignore[attr-defined]  # noqa: B018
    except RuntimeError:
        return True
    return False


def first_gradients(
    outputs: Sequence[Tensor | GradientEdge], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients with which `torch.autograd.backward` would start: checked, and ones for scalars without one."""
    return torch.autograd._make_grads(outputs, gradients, is_grads_batched=False)  # type: ignore[arg-type]


def gradient_dtype(leaf: Tensor) -> torch.dtype | None:
    """The dtype to which the user wants a leaf's gradient cast (`Tensor.grad_dtype`); None where nobody said so."""
    wanted: torch.dtype | None = getattr(leaf, "grad_dtype", None)
    return None if wanted == leaf.dtype else wanted


def leaf_hooks(leaf: Tensor) -> Hooks:
    """The hooks of `leaf.register_hook`, in running order."""
    return list((leaf._backward_hooks or {}).values())


def functorch_is_active() -> bool:
    """Whether this runs inside a transform of torch.func, where a backward is not allowed."""
    return bool(torch._C._are_functorch_transforms_active())


def beneath_transforms(tensor: Tensor) -> Tensor:
    """The tensor that has the numbers and the graph, where functorch's transforms (vmap, grad) wrap it; else itself."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def without_torch_function() -> AbstractContextManager[Any]:
    """A context in which tensor subclasses and function modes are not asked what they think of it."""
    return torch._C.DisableTorchFunction()


def is_abstract(tensor: Tensor) -> bool:
    """Whether it has no elements that could be read: it stands for another tensor inside a transform of torch.func, or
    for zeros of which there are no bytes (in forward mode)."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor())


def stored_values(tensor: Tensor) -> Tensor:
    """The elements that a sparse tensor stores. Of COO tensors they come as they are, not coalesced: no waiting."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def stored_bytes(tensor: Tensor) -> int:
    """What a COO tensor stores: its elements and their indices."""
    return sum(each.numel() * each.element_size() for each in (tensor._indices(), tensor._values()))


def computes_itself(tensor: Tensor) -> bool:
    """Whether it is of a subclass that runs operations in its own way (`__torch_dispatch__`: DTensor, FakeTensor)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def in_backward() -> bool:
    """Whether this thread runs a backward of PyTorch's engine."""
    return torch._C._current_graph_task_id() != -1


function_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Whether a TorchFunctionMode watches this thread: then even reading a tensor's shape calls it."""


grad_mode_switch: Callable[[bool], None] = torch._C._set_grad_enabled
"""What torch.no_grad() and its like call as they are entered and left, by which a TorchFunctionMode sees them."""


def in_function_forward() -> bool:
    """Whether a custom Function's forward is running: there torch turns forward-mode AD off, as in inference mode."""
    return not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()


@contextmanager
def unobserved() -> Iterator[None]:
    """A context without grad mode, in which no mode and no tensor subclass of the user's sees what is done."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                yield
        else:
            yield


_ENGINE_CALL = torch.autograd.graph._engine_run_backward.__code__
_FUNCTION_CALL = BackwardCFunction.apply.__code__


def called_by_engine(error: BaseException) -> TracebackType | None:
    """Where the engine called the Python code that raised: a hook, or a custom Function. None if no such code did."""
    traceback = error.__traceback__
    while traceback is not None:
        below = traceback.tb_next
        if traceback.tb_frame.f_code is _ENGINE_CALL:
            ours = below is not None and below.tb_frame.f_code is _Engine.run_backward.__code__
            return below.tb_next if below is not None and ours else below
        traceback = below
    return None


def running_function(error: BaseException) -> Node | None:
    """The node of the custom Function whose backward raised, where this is what the engine called."""
    called = called_by_engine(error)
    if called is None or called.tb_frame.f_code is not _FUNCTION_CALL:
        return None
    node: Node = called.tb_frame.f_locals["self"]
    return node


def first_freed(nodes: Iterable[Node]) -> Node | None:
    """The first of the nodes that kept something, if it has been freed: in this order, the first that can complain.

    None if it has not, or if this can't be told of it or one before. Custom Functions complain from Python.
    """
    for node in islice(nodes, 50):
        if hides_saved(node):
            return None
        if isinstance(node, BackwardCFunction):
            continue
        try:
            for slot in _raw_slots(type(node)):
                raw = getattr(node, slot)
                if type(raw) is tuple and not raw:
                    continue
                if any(each is not None and each.unpack_hook is _freed for each in _all_of(raw)):
                    return node
                if type(raw) is tuple or raw.unpack_hook is not None or raw.data is not None:
                    return None
                getattr(node, f"_saved_{slot.removeprefix('_raw_saved_')}")  # None, of one that was never there
        except RuntimeError:
            return node
    return None


def _all_of(raw: Any) -> tuple[Any, ...]:
    return raw if type(raw) is tuple else (raw,)


def sort_queue_again(waiting: int) -> None:
    """From a hook: lets the engine's queue, where so many tasks wait, follow sequence numbers that were changed there.

    The queue is a binary heap, which compares tasks only as they are put in and taken out. Tasks of a backward inside
    this one stand above all others: as they are put in, they push those down to the ends of the branches, where none is
    above another any more; and as they are taken out, each is sorted in by its number.
    """
    with unobserved():
        leaves = [torch.zeros((), requires_grad=True) for _ in range((waiting + 1) * waiting.bit_length() + 2)]
        edges = [get_gradient_edge(leaf) for leaf in leaves]
        run_engine(edges, [torch.ones(())] * len(leaves), False, False, accumulate=True)


def empty_queue() -> None:
    """After a backward that raised: lets go of the tasks which still wait in the engine's queue, with their gradients.

    The next backward of the thread drops them first, and may be a small one.
    """
    sort_queue_again(0)


_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla")


class ThreadState:
    """torch's state of the thread that makes it, as far as Python can give it to another one.

    That is what the engine hands on to a backward's hooks and tasks: grad, inference and forward mode, autocast,
    `saved_tensors_hooks`, function and dispatch modes (default device among them), whether devices have threads of
    their own, and the accelerators' current device and streams.

    Raises:
        NotImplementedError: there is something which only the thread itself can have.
    """

    def __init__(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise NotImplementedError("a profiler of this thread, which would not see the other one")
        self._function_modes = list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
        self._dispatch_modes = list(_get_current_dispatch_mode_stack())
        for mode in self._dispatch_modes:
            if getattr(mode, "_mode_key", None) is not None:
                raise NotImplementedError(f"{type(mode).__name__}, a mode of torch's own dispatch")
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._forward_mode = torch._C._is_fwd_grad_enabled()
        self._multithreading = torch._C._is_multithreading_enabled()
        self._view_replay = torch._C._is_view_replay_enabled()
        devices = [device for device in _AUTOCAST_DEVICES if torch.amp.is_autocast_available(device)]
        self._autocast = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._saved_hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        self._no_saved_hooks = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
        self._group = torch._C._get_graph_exec_group()
        self._streams: list[torch.Stream] = []
        self._device: int | None = None
        if torch.accelerator.is_available():
            self._device = torch.accelerator.current_device_index()
            self._streams = [torch.accelerator.current_stream(each) for each in range(torch.accelerator.device_count())]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread has the state meanwhile. For a new thread, which has none of its own."""
        for stream in self._streams:
            torch.accelerator.set_stream(stream)
        if self._device is not None:
            torch.accelerator.set_device_index(self._device)
        for device, enabled, dtype in self._autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._autocast_cache)
        torch._C._set_fwd_grad_enabled(self._forward_mode)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            stack.enter_context(torch.autograd.set_multithreading_enabled(self._multithreading))
            stack.enter_context(torch.autograd.grad_mode._force_original_view_tracking(self._view_replay))
            if self._no_saved_hooks is not None:
                stack.enter_context(torch.autograd.graph.disable_saved_tensors_hooks(self._no_saved_hooks))
            elif self._saved_hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self._saved_hooks))
            if self._group is not None:
                torch._C._set_graph_exec_group(self._group)
                stack.callback(torch._C._set_graph_exec_group, None)
            for mode in self._function_modes:
                torch._C._push_on_torch_function_stack(mode)
                stack.callback(torch._C._pop_torch_function_stack)
            for mode in self._dispatch_modes:
                torch._C._push_on_torch_dispatch_stack(mode)
                stack.callback(torch._C._pop_torch_dispatch_stack, None)
            yield


_thread = _Thread()


class _NoZeros(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Meanwhile `zeros_like` gives back what it was asked to be like."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.zeros_like.default:
            return args[0]
        return operator(*args, **(kwargs or {}))


def reducer_buckets(wrapper: DistributedDataParallel) -> list[tuple[list[Tensor], int]]:
    """The buckets of a DistributedDataParallel by their index: the parameters, and the bytes of their gradients.

    torch tells of them in copies filled with zeros, as large as all gradients. Here they are not copied.
    """
    with _NoZeros():  # type: ignore[no-untyped-call]
        buckets = wrapper.reducer._get_zeros_like_grad_buckets()
    buckets.sort(key=lambda bucket: bucket.index())
    return [(bucket.parameters(), bucket.buffer().nbytes) for bucket in buckets]


@contextmanager
def unprepared_reducers() -> Iterator[None]:
    """Meanwhile a forward in this thread prepares no reduction of DistributedDataParallel, and synchronises nothing.

    `replicate` calls these two from hooks of the module, without DistributedDataParallel's own forward.
    """
    before, after = DistributedDataParallel._pre_forward, DistributedDataParallel._post_forward
    thread = threading.get_ident()

    def pre_forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return before(self, *inputs, **kwargs)  # type: ignore[no-untyped-call]
        if self.device_ids:
            (inputs,), (kwargs,) = scatter_kwargs(inputs, kwargs, self.device_ids)
        return inputs, kwargs

    def post_forward(self: DistributedDataParallel, output: Any) -> Any:
        return output if threading.get_ident() == thread else after(self, output)  # type: ignore[no-untyped-call]

    DistributedDataParallel._pre_forward = pre_forward  # type: ignore[method-assign]
    DistributedDataParallel._post_forward = post_forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel._pre_forward = before  # type: ignore[method-assign]
        DistributedDataParallel._post_forward = after  # type: ignore[method-assign]


@contextmanager
def watching_reentrant_checkpoints(before: Callable[[], None]) -> Iterator[None]:
    """Calls `before` in front of each region under `checkpoint(use_reentrant=True)` in any thread."""
    forward = vars(CheckpointFunction)["forward"]

    def watched(ctx: Any, *args: Any) -> Any:
        before()
        return forward.__func__(ctx, *args)

    CheckpointFunction.forward = staticmethod(watched)  # type: ignore[method-assign]
    try:
        yield
    finally:
        CheckpointFunction.forward = forward  # type: ignore[method-assign]


def reductions_are_delayed(wrapper: DistributedDataParallel) -> bool:
    """Whether a DistributedDataParallel is about to learn its static graph, and reduces all at the backward's end."""
    return wrapper.static_graph and not wrapper._static_graph_delay_allreduce_enqueued


def world() -> Any | None:
    """The default process group; None where there is none, or no other rank in it. A "fake" one has none either."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    group: Any = torch.distributed.distributed_c10d._get_default_group()
    return None if group.size() < 2 or torch.distributed.get_backend(group) == "fake" else group


def world_store() -> Any | None:
    """The store through which the ranks of the default process group found each other; None: it has none (MPI)."""
    return torch.distributed.distributed_c10d._get_default_store()


def part_of(store: Any, prefix: str) -> Any:
    """A store whose keys are those of another one under a prefix."""
    distributed: Any = torch.distributed
    return distributed.PrefixStore(prefix, store)


def collectives_issued() -> list[tuple[int, int]]:
    """Of each process group of this rank its size, and how many collectives this rank has begun in it; sorted."""
    found = []
    groups: list[Any] = list(torch.distributed.distributed_c10d._world.pg_map)
    for group in groups:
        try:
            found.append((group.size(), group._get_sequence_number_for_group()))
        except RuntimeError:  # of a backend that doesn't count
            found.append((group.size(), -1))
    return sorted(found)


class AllocationEvents(NamedTuple):
    """What the CPU's allocator did in one thread.

    Attributes:
        rows: (nanoseconds since 1970, address, bytes) in order of time; bytes are negative for a block that was freed.
        tasks: nanoseconds at which the engine began each task that is not nested in another one, its tensor hooks
            included. Empty where tasks were not asked for.
    """

    rows: list[tuple[int, int, int]]
    tasks: list[int]


def start_allocation_events(tasks: bool = False) -> None:
    """Lets torch's profiler note what the CPU's allocator does in this thread, and in what it starts on the engine.

    Without `tasks` no operation is timed, which leaves the cost at about one microsecond for each block.

    Raises:
        RuntimeError: a profiler is at work already, in any thread; there can be one alone.
    """
    if torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled:
        raise RuntimeError(
            "a torch profiler is at work, and memory is measured by the same one: leave torch.profiler.profile() first"
        )
    profiler = torch._C._profiler
    activities = {profiler.ProfilerActivity.CPU}
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO,
        False,  # shapes
        True,  # memory
        False,  # stacks
        False,  # floating point operations
        False,  # modules
        profiler._ExperimentalConfig(),
    )
    with _quiet_kineto():
        torch._C._autograd._prepare_profiler(config, activities)
    scopes = {profiler.RecordScope.FUNCTION if tasks else profiler.RecordScope.LITE_INTERPRETER}
    torch._C._autograd._enable_profiler(config, activities, scopes)  # type: ignore[call-arg]
    _log_errors_alone(True)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Kineto, when first used, reads here how much to print; by itself each run of it prints two lines."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


_ALLOCATION = "[memory]"
_EVALUATE = "autograd::engine::evaluate_function: "
_CPU = torch.device("cpu")


_ERRORS = 2
_logged_before: list[int] = []  # the level that was there, while it is raised


def _log_errors_alone(raised: bool) -> None:
    """Raises the level from which on torch's C++ side logs, or puts it back.

    It warns of each block that is freed and was there before a profiler. Where the number is not found (another build
    of torch), the warning comes, once for a thousand such blocks.
    """
    number = _log_level()
    if number is not None and raised:
        _logged_before.append(number.value)
        number.value = max(number.value, _ERRORS)
    elif number is not None and _logged_before:
        number.value = _logged_before.pop()


@cache
def _log_level() -> ctypes.c_int | None:
    for name in ("libc10.so", "libc10.dylib", "c10.dll"):
        with suppress(OSError, ValueError):
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    return None


def stop_allocation_events() -> AllocationEvents:
    """What was noted since `start_allocation_events`."""
    _log_errors_alone(False)
    rows: list[tuple[int, int, int]] = []
    tasks: list[int] = []
    todo: list[tuple[Any, bool]] = [(torch._C._autograd._disable_profiler().experimental_event_tree(), False)]
    while todo:
        events, nested = todo.pop()
        rows += [
            (event.start_time_ns, fields.ptr, fields.alloc_size)
            for event in events
            if event.name == _ALLOCATION and (fields := event.extra_fields).device == _CPU  # not an accelerator's
        ]
        for event in events:
            name = event.name
            if name != _ALLOCATION:
                task = name.startswith(_EVALUATE)
                if task and not nested:
                    tasks.append(event.start_time_ns)
                todo.append((event.children, nested or task))
    rows.sort(key=itemgetter(0))  # stable: what has one time keeps its order
    tasks.sort()
    return AllocationEvents(rows, tasks)


def start_cuda_history(most: int) -> None:
    """Lets the CUDA allocator write down what it does, on all devices: up to so many entries, then without the oldest.

    Raises:
        RuntimeError: it does so already; there can be one history alone. Or it can't: another allocator is in use.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]
    if torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError(
            f"the CUDA allocator in use is {torch.cuda.get_allocator_backend()}, of which torch keeps no history; "
            'memory is measured with the one called "native"'
        )
    if torch._C._cuda_isHistoryEnabled():
        raise RuntimeError(
            "the history of CUDA memory is being recorded already, and torch keeps one alone: end that first, with "
            "torch.cuda.memory._record_memory_history(enabled=None)"
        )
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, stacks="python", max_entries=most, clear_history=True
    )


def stop_cuda_history(device: int) -> list[dict[str, Any]]:
    """What the allocator of this device did since `start_cuda_history`: torch's entries, oldest first."""
    try:
        entries: list[dict[str, Any]] = torch.cuda.memory._snapshot(device)["device_traces"][device]
        return entries
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)  # also lets go of the entries


def identity_of(tensor: Tensor) -> int:
    """The address of the C++ tensor (TensorImpl), which all Python objects of it share."""
    identity: int = tensor._cdata
    return identity


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows it as a view; such a tensor keeps its base, and so holds its storage twice."""
    return tensor._is_view()


def dispatch_mode_is_on() -> bool:
    """Whether a TorchDispatchMode watches this thread."""
    return bool(torch._C._len_torch_dispatch_stack())


class FollowedStorage:
    """Tells whether a tensor's bytes still live, without keeping them."""

    def __init__(self, tensor: Tensor) -> None:
        self._reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    @property
    def alive(self) -> bool:
        return not self._reference.expired()  # type: ignore[no-untyped-call]


def warm_up_fakes() -> None:
    """Loads what torch needs for its first operations on fake tensors, a second's work. Touches no tensor of others."""
    with FakeTensorMode():
        pictures, weights = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)
        torch.nn.functional.conv2d(pictures, weights).relu().sum()


class FakeOperations(TorchDispatchMode):
    """While it is open, operations compute nothing: the tensors that they make have a layout, and no bytes.

    It notes which storages operations make and when these die. What a kernel allocates inside, or Python operations
    that torch has in a kernel's place, isn't seen. Real tensors that an operation gets are left as they are, also by
    operations in place, as are the generators of random numbers.

    Args:
        device: storages on others are not noted, nor those of no bytes.

    Attributes:
        events: births and deaths of storages: `n` and `~n`, counted from 0.
        nbytes: the size of each.
        given: by address the storages of real tensors that operations got: somebody kept them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.given: dict[int, Storage] = {}
        self.events: list[int] = []
        self.nbytes: list[int] = []
        # An operation which torch can't fake would else run, on zeros.
        self._mode = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self._watched: dict[int, weakref.ref[Tensor]] = {}  # by id() the tensors that operations made
        self._users: Counter[int] = Counter()  # how many of them are on each storage, by its address
        self._numbers: dict[int, int] = {}  # by address
        self._outside: dict[int, Tensor] = {}  # by address what was there before
        self._modes = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(unobserved())
            stack.enter_context(self._mode)
            super().__enter__()  # type: ignore[no-untyped-call]
            stack.push(super().__exit__)
            self._modes = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)

    def start(self) -> None:
        """Forgets what was noted."""
        self.events, self.nbytes = [], []
        for known in (self.given, self._watched, self._users, self._numbers, self._outside):
            known.clear()

    def tensor(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A fake tensor, whose storage is not noted."""
        with _disable_current_modes(), self._mode:
            return self._take(torch.empty_strided(shape, strides, dtype=dtype, device=device))

    def number(self, tensor: Tensor) -> int:
        """The number of the tensor's storage; -1 if it is none of those that were made."""
        storage = storage_of(tensor)
        return -1 if storage is None else self._numbers.get(storage.address, -1)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self._as_fake, (args, kwargs or {}))
        result = operator(*args, **kwargs)
        tree_map_only_(Tensor, self._note, result)
        return result

    def _as_fake(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if (storage := storage_of(tensor)) is not None:
            self.given[storage.address] = storage
        return self._take(self._mode.from_tensor(tensor))

    def _take(self, tensor: Tensor) -> Tensor:
        storage = storage_of(tensor)
        if storage is not None:
            self._outside[storage.address] = tensor  # kept, else the address could become another's
        return tensor

    def _note(self, tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is None or not storage.nbytes or tensor.device != self._device or id(tensor) in self._watched:
            return
        address = storage.address
        if address in self._outside:
            return
        self._watched[id(tensor)] = weakref.ref(tensor, partial(self._forget, id(tensor), address))
        self._users[address] += 1
        if address not in self._numbers:
            self._numbers[address] = len(self.nbytes)
            self.events.append(len(self.nbytes))
            self.nbytes.append(storage.nbytes)

    def _forget(self, number: int, address: int, dead: object) -> None:
        if self._watched.get(number) is not dead:
            return  # another thread's collector says it after `start` has forgotten all
        del self._watched[number]
        self._users[address] -= 1
        if not self._users[address]:
            self.events.append(~self._numbers.pop(address))


_DOUBLE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


class InFloat64(TorchDispatchMode):
    """While it is open, operations that are told to make numbers of less precision make float64 or complex128."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, a second's work: `keep_compiler_out` does what is needed

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [_DOUBLE.get(each, each) if type(each) is torch.dtype else each for each in args]
        kwargs = {
            name: _DOUBLE.get(each, each) if type(each) is torch.dtype else each
            for name, each in (kwargs or {}).items()
        }
        return operator(*args, **kwargs)


keep_compiler_out(InFloat64.__torch_dispatch__)


def in_float64(tensor: Tensor) -> Tensor:
    """A copy without a graph; of whole numbers and truth values as they are."""
    return tensor.detach().to(_DOUBLE.get(tensor.dtype, tensor.dtype), copy=True)


def saved_facts(node: Node) -> tuple[Any, ...] | None:
    """What a C++ node keeps, as values that can be compared: layouts of tensors, and what else it shows.

    None where this can't be told. Not for nodes whose tensors were packed: the user's hooks would run.
    """
    try:
        facts = tuple([_fact(getattr(node, name)) for name in _kept_names(type(node))])
        hash(facts)
    except (RuntimeError, TypeError):  # freed; can't be hashed
        return None
    return facts


@cache
def _kept_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def _fact(value: Any) -> Any:
    if isinstance(value, Tensor):
        strides = value.stride() if value.layout is torch.strided and not value.is_nested else None
        return value.shape, strides, value.dtype, value.device, value.layout
    if isinstance(value, tuple | list):
        return tuple([_fact(each) for each in value])
    return type(value), value


SAVED_FOR_FORWARD = "saved_for_forward"
"""Where a custom Function's `save_for_forward` puts its tensors, among the attributes."""


def attributes_of(node: Node) -> Mapping[str, object]:
    """What a custom Function put on its `ctx` by itself; it goes with the node, not when the node has run."""
    return vars(node) if isinstance(node, BackwardCFunction) else {}


def region_of(node: Node) -> Hashable:
    """If the node is of a region under `checkpoint(use_reentrant=False)`, what stands for the region; or None.

    The region's nodes keep it, and with it the region's inputs, until the last of them has let go of what it saved.
    """
    for raw in saved_variables(node):
        for cell in getattr(raw.unpack_hook, "__closure__", None) or ():
            if type(cell.cell_contents).__name__ == "_CheckpointFrame":
                return cell.cell_contents  # type: ignore[no-any-return]
    return None


def regions_around(node: Node) -> list[Hashable]:
    """The region of a node and those around it, which are computed again before it: they made its inputs."""
    found: dict[Hashable, None] = {}
    hooks = list(unpacking(node))
    while hooks:
        hook = hooks.pop()
        for region in _variables(hook).values() if isinstance(hook, FunctionType) and _is_checkpoints(hook) else ():
            if isinstance(region, FunctionType):  # with debug=True torch wraps the hook
                hooks.append(region)
            elif type(region).__name__ == "_CheckpointFrame" and region not in found:
                found[region] = None
                hooks += [getattr(each, "unpack_hook", None) for each in _region_saved(region)]
    return list(found)


def region_code(region: Any) -> list[object]:
    """What a region calls when it is computed again, and the keyword arguments."""
    kept = _variables(region.recompute_fn)
    function = kept.get("fn")
    if isinstance(function, FunctionType) and _is_checkpoints(function):  # that of checkpoint_sequential
        function = list(_variables(function).values())
    return [function, kept.get("kwargs")]


def is_recomputed(region: Any, number: int) -> bool:
    """Whether a region has been computed again in the backward of this number."""
    return bool(region.is_recomputed.get(number))


def _is_checkpoints(function: FunctionType) -> bool:
    return function.__module__ == "torch.utils.checkpoint"


def _variables(function: FunctionType) -> dict[str, object]:
    """What a function's closure holds, by name."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that was never set
            found[name] = cell.cell_contents
    return found


def _region_saved(region: Any) -> Sequence[Any]:
    saver = getattr(region, "input_saver", None)  # torch < 2.13
    saved: Sequence[Any] = region.saved_args if saver is None else saver.grad_fn._raw_saved_tensors
    return saved


def region_inputs(region: Any) -> list[Tensor]:
    """What a region is computed from again, but for what another region's hooks have packed in turn."""
    found = [each.data for each in _region_saved(region) if hasattr(each, "unpack_hook") and each.unpack_hook is None]
    return [each for each in found if isinstance(each, Tensor)]


Operator = OpOverload
"""One overload of an operator of `torch.ops`: `torch.ops.aten.mul.Tensor`."""


class SeenOperations(TorchDispatchMode):
    """While it is open, shows `run` each ATen operation of this thread: below autograd and autocast.

    Not shown are those of a backward, and `detach`, which also hooks and views in place call; the ranges of a profiler;
    nor what is no ATen operation but made of such (flex_attention), nor what happens inside.
    """

    supports_higher_order_operators = True
    sees_backward = False  # whether those of a backward are shown, too

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in InFloat64

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Is to give what `operator(*args, **kwargs)` does."""
        raise NotImplementedError

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unseen = operator is _DETACH or operator is _ALIAS or operator is _LIFT  # to hash an operator takes longer
        if unseen or (not self.sees_backward and in_backward()):
            return operator(*args, **(kwargs or {}))
        if not isinstance(operator, OpOverload) or operator.namespace == "profiler":
            return operator(*args, **(kwargs or {}))
        return self.run(operator, args, kwargs or {})


keep_compiler_out(SeenOperations.__torch_dispatch__)


class EveryOperation(TorchDispatchMode):
    """While it is open, shows `run` each operation that computes in this thread: of forwards and of backwards, below
    autograd, autocast and the transforms of torch.func.

    Of tensors that compute in their own way (DTensor, jagged ones) it sees what they do with the tensors inside. What
    is no ATen operation but made of such (flex_attention) it sees as one.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in InFloat64

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Is to give what `operator(*args, **kwargs)` does."""
        raise NotImplementedError

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.__torch_dispatch__ is not Tensor.__torch_dispatch__ for each in types if issubclass(each, Tensor)):
            return NotImplemented  # then torch asks the tensors, with this mode still open
        views = getattr(operator, "is_view", False) and operator is not _LIFT  # which gives what torch.tensor has made
        if views or getattr(operator, "namespace", "") == "profiler":
            return operator(*args, **(kwargs or {}))
        return self.run(operator, args, kwargs or {})


keep_compiler_out(EveryOperation.__torch_dispatch__)


def is_lift(operator: object) -> bool:
    """Whether it hands over a tensor that was filled with Python's or NumPy's numbers, which no operation shows."""
    return operator is _LIFT


@contextmanager
def uncompiled() -> Iterator[None]:
    """Meanwhile what torch.compile wraps runs as it was written. It stays compiled for later, as it would not under a
    dispatch mode alone, and no compilation is made for this run."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


# What `with` does for a mode and for hooks, in less time: between large kernels each line of Python takes microseconds.
open_mode: Callable[[TorchDispatchMode], None] = torch._C._push_on_torch_dispatch_stack
close_mode: Callable[[None], object] = torch._C._pop_torch_dispatch_stack
open_hooks: Callable[[Callable[..., Any], Callable[..., Any]], None] = (
    torch._C._autograd._push_saved_tensors_default_hooks
)
close_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks


def open_pack_hook() -> object:
    """The pack hook of the `saved_tensors_hooks` that were opened last and are open; None: none are."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


_DETACH, _ALIAS, _LIFT = (getattr(torch.ops.aten, name).default for name in ("detach", "alias", "lift_fresh"))


def operator_named(name: str) -> Operator | None:
    """The operator that calls itself so, "aten.mul.Tensor"; None where torch knows no such."""
    found: object = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


@cache
def schema_writes(operator: Operator) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Which arguments an operator writes into, as its schema says: by position and by name."""
    written = [
        (number, argument.name)
        for number, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(number for number, _ in written), tuple(name for _, name in written)


def detached(tensor: Tensor) -> Tensor:
    """The same bytes and version counter, no graph.

    Inside of an operation, where pack hooks run and dispatch modes are called, torch's own detach() gives a tensor with
    a version counter of its own.
    """
    excluded = _key_is_excluded(_IN_PLACE_OR_VIEW)
    if excluded:
        _exclude_key(_IN_PLACE_OR_VIEW, False)
    try:
        if computes_itself(tensor) or not torch._C._len_torch_dispatch_stack():
            return tensor.detach()
        with torch._C._DisableTorchDispatch():  # no mode of this thread needs to see it
            return tensor.detach()
    finally:
        if excluded:
            _exclude_key(_IN_PLACE_OR_VIEW, True)


_IN_PLACE_OR_VIEW = torch._C.DispatchKey.ADInplaceOrView
_key_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_exclude_key = torch._C._dispatch_tls_set_dispatch_key_excluded


def on_storage(storage: torch.UntypedStorage, view: View) -> Tensor:
    """A tensor on these bytes."""
    dtype, offset, shape, strides, conjugated, negated = view
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
    if conjugated:
        tensor = torch._conj(tensor)
    if negated:
        tensor = torch._neg_view(tensor)
    return tensor


class View(NamedTuple):
    """What a tensor is besides its storage; offset and strides are in elements."""

    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool
    negated: bool

    @staticmethod
    def of(tensor: Tensor) -> View:
        return View(
            tensor.dtype,
            tensor.storage_offset(),  # type: ignore[arg-type]
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )


@contextmanager
def activation_memory_budget(share: float) -> Iterator[None]:
    """What torch.compile's partitioner may save for the backward meanwhile, as a share of what it would save (1).

    It counts for what is compiled meanwhile.
    """
    from torch._functorch import config

    with config.patch(activation_memory_budget=share):
        yield


class ShardedParameter(NamedTuple):
    """A parameter under `fully_shard`: its name below the outermost sharded module, this rank's shard, which is what
    the user's optimizer has, and the leaf of the graph, which is gathered for the forward; None before the first."""

    name: str | None
    shard: Tensor
    gathered: Tensor | None


def sharded_parameters() -> list[ShardedParameter]:
    """All parameters under `fully_shard` (FSDP2) in this process."""
    return [
        ShardedParameter(each._param_fqn, each.sharded_param, getattr(each, "_unsharded_param", None))
        for state in _sharded_states()
        for group in _groups_of(state)
        for each in group.fsdp_params
    ]


def flat_names(leaf: Tensor) -> tuple[str, ...]:
    """The names of the parameters of which `FullyShardedDataParallel` (FSDP1) has made the leaf, below the module that
    it wraps; none for any other leaf."""
    package = sys.modules.get("torch.distributed.fsdp._flat_param")
    if package is None or not isinstance(leaf, package.FlatParameter):
        return ()
    return tuple(leaf._fqns)


def flattens() -> bool:
    """Whether `FullyShardedDataParallel` (FSDP1) may be at work: its module is loaded, and ranks have met."""
    loaded = "torch.distributed.fsdp.fully_sharded_data_parallel" in sys.modules
    return loaded and torch.distributed.is_initialized()


def is_flattened(module: torch.nn.Module) -> bool:
    """Whether it is a `FullyShardedDataParallel` (FSDP1)."""
    package = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return package is not None and isinstance(module, package.FullyShardedDataParallel)


def is_fully_sharded(module: torch.nn.Module) -> bool:
    """Whether `fully_shard` manages the module."""
    package = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    return package is not None and package._get_module_fsdp_state(module) is not None


def _sharded_states() -> list[Any]:
    """What `fully_shard` keeps of each of its modules, in the order in which they were made."""
    package = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if package is None:
        return []
    modules = list(sys.modules["torch.distributed._composable_state"]._module_state_mapping)
    found = {id(state): state for module in modules if (state := package._get_module_fsdp_state(module)) is not None}
    return list(found.values())


def _groups_of(state: Any) -> list[Any]:
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]  # torch < 2.13


class Sharding:
    """What `fully_shard` keeps of a step under way, all modules' of this process: to be put back after a step of ours.

    Until then gradients that were there are copies, so that a backward adds to these, and no hook hears of them.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, str, Any]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._gathered: dict[int, Any] = {}
        for state in _sharded_states():
            order = _order_of(state)
            self._lists.append((order, list(order)))
            self._keep(state._state_ctx, "iter_forward_root", "post_backward_final_callback_queued")
            self._keep(state, "_training_state")
            for group in _groups_of(state):
                self._gathered[id(group)] = group._sharded_state
                self._lists.append((group._post_forward_indices, list(group._post_forward_indices)))
                self._keep(group, "_training_state", "_partial_reduce_output")
                for each in group.fsdp_params:
                    self._keep(each, "unsharded_accumulated_grad")
                    for leaf in _leaves_of(each):
                        self._keep(leaf, "grad", "_post_accumulate_grad_hooks")
                        leaf._post_accumulate_grad_hooks = None  # type: ignore[assignment]

    def _keep(self, of: Any, *names: str) -> None:
        for name in names:
            value = getattr(of, name)
            self._kept.append((of, name, value))
            if isinstance(value, Tensor):
                setattr(of, name, value.detach().clone())

    def put_back(self, gather: bool) -> None:
        """All is as before. `gather`: what was gathered, too, which waits for the other ranks; else that is freed, but
        where it is still as it was: it may be of an earlier step, which PyTorch would go on with."""
        for state in _sharded_states():
            state._state_ctx.iter_forward_root = None
            state._state_ctx.post_backward_final_callback_queued = False
            _order_of(state).clear()
            for group in _groups_of(state):
                self._put_back_group(group, gather)
            state._training_state = type(state._training_state).IDLE
        for of, name, value in self._kept:
            setattr(of, name, value)
        for found, before in self._lists:
            found[:] = before

    def _put_back_group(self, group: Any, gather: bool) -> None:
        kinds = type(group._sharded_state)
        before = self._gathered.get(id(group), kinds.SHARDED)
        group._training_state = type(group._training_state).IDLE
        group._post_forward_indices.clear()
        group._partial_reduce_output = None
        group.wait_for_unshard()  # of what was fetched ahead
        if before is kinds.SHARDED or (not gather and group._sharded_state is not before):
            group._to_sharded()
        elif group._sharded_state is not before:
            group.unshard()
            group.wait_for_unshard()
            if before is kinds.SHARDED_POST_FORWARD:
                group._to_sharded_post_forward()
        for each in group.fsdp_params:
            each.unsharded_accumulated_grad = None
            for leaf in _leaves_of(each):
                leaf.grad = None


def _order_of(state: Any) -> list[Any]:
    """The groups in the order of the forward, in which the backward fetches them ahead; none before the first."""
    found: list[Any] = getattr(state._comm_ctx, "post_forward_order", [])
    return found


def _leaves_of(parameter: Any) -> list[Tensor]:
    """A parameter's shard, and the leaf of the graph once there has been a forward."""
    return [parameter.sharded_param, *([parameter._unsharded_param] if hasattr(parameter, "_unsharded_param") else [])]
