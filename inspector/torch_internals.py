"""Everything of torch that is private, in one place.

tests/inspector/test_torch_internals.py checks each function's promise, so that a torch release which changes one fails
there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from traceback import FrameSummary
from typing import Any, NamedTuple, NewType

import torch
from torch import Tensor
from torch._C._profiler import gather_traceback
from torch.autograd.function import BackwardCFunction, Function
from torch.autograd.graph import GradientEdge, Node
from torch.autograd.variable import Variable
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._traceback import CapturedTraceback
from torch.utils.checkpoint import GraphExecGroup
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


Traceback = NewType("Traceback", object)


def number_of(node: Node) -> int:
    """The node's sequence number."""
    number: int = node._sequence_nr()
    return number


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor of which this one is a view."""
    return tensor._base


def version_of(tensor: Tensor) -> int:
    """How often the tensor was modified in place."""
    return tensor._version


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
    return Traceback(gather_traceback(python=True, script=False, cpp=False))


def traceback_frames(traceback: Traceback) -> list[FrameSummary]:
    """The lines of a captured stack, outermost first.

    torch looks for lines of code that Inductor has generated, and loads Inductor to do so: a second or more. Where
    nobody has loaded it, it has generated nothing, and an empty attribute stands in for it.
    """
    loaded = "torch._inductor" in sys.modules
    if not loaded:
        vars(torch)["_inductor"] = None
    try:
        return list(CapturedTraceback(traceback).summary())  # type: ignore[no-untyped-call]
    finally:
        if not loaded:
            del vars(torch)["_inductor"]


def saved_slots(node: Node) -> Iterator[tuple[str, Tensor, bool]]:
    """The tensors which a node keeps: the name of the slot, the tensor, and whether it was modified since.

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
        try:
            kept = getattr(node, "saved_tensors" if name == "tensors" else f"_saved_{name}")
            modified = False
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):  # freed
                continue
            kept = [each.data for each in raws] if many else raw.data
            modified = True
        for tensor in kept if many else (kept,):
            if isinstance(tensor, Tensor):
                yield name, tensor, modified


@cache
def _raw_slots(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


ApplyWatcher = Callable[[type[Function], int, Any], None]
_apply_watchers: list[ApplyWatcher] = []
_apply_lock = threading.Lock()
_original_apply = Function.__dict__["apply"]


@contextmanager
def watch_function_apply(watcher: ApplyWatcher) -> Iterator[None]:
    """Calls `watcher(SomeFunction, sequence number before, result)` after each `SomeFunction.apply`, in any thread.

    torch has no hook for this. `Function.apply` itself is replaced while at least one watcher is there.
    """
    with _apply_lock:
        _apply_watchers.append(watcher)
        Function.apply = classmethod(_watched_apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        with _apply_lock:
            _apply_watchers.remove(watcher)
            if not _apply_watchers:
                Function.apply = _original_apply  # type: ignore[method-assign]


def _watched_apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
    start = sequence_nr()
    result = _original_apply.__get__(None, cls)(*args, **kwargs)
    for watcher in tuple(_apply_watchers):
        watcher(cls, start, result)
    return result


EngineRun = Callable[..., tuple[Tensor, ...]]
Redirect = Callable[
    [Sequence[Tensor | GradientEdge], Sequence[Tensor | None], bool, bool, Sequence[Tensor | GradientEdge]], None
]
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

    def run_redirected(outputs: Sequence[Tensor | GradientEdge], *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        if _passage.granted or not kwargs["accumulate_grad"]:
            _passage.granted = False
            return beneath(outputs, *args, **kwargs)
        redirect(outputs, *args)
        return ()

    def end() -> None:
        global _redirected
        _redirected = False
        for module in doors:
            if getattr(module, _DOOR) is run_redirected:
                setattr(module, _DOOR, beneath)

    # torch.compiler's own replacement takes the engine from the one module and puts it back into both.
    doors = torch.autograd, torch.autograd.graph
    for module in doors:
        setattr(module, _DOOR, run_redirected)
    _redirected = True
    return end


def torch_backward(*args: Any, **kwargs: Any) -> None:
    """`torch.autograd.backward` past `redirect_backward`. What runs inside of it is redirected again."""
    _passage.granted = _redirected
    try:
        torch.autograd.backward(*args, **kwargs)
    finally:
        _passage.granted = False


_pins: dict[Node, list[int]] = {}  # the number of each pinned node before, and how many pins hold it now
_pins_lock = threading.Lock()


@contextmanager
def pinned_order(nodes: Sequence[Node]) -> Iterator[None]:
    """Meanwhile the engine runs `nodes` in this order, where edges allow it. Their sequence numbers come back after.

    Backwards in several threads may share nodes, the AccumulateGrad of a common parameter: then one may spoil the
    other's order, but the last to end puts back the number from before the first.
    """
    with _pins_lock:
        for rank, node in enumerate(nodes):
            _pins.setdefault(node, [number_of(node), 0])[1] += 1
            node._set_sequence_nr(len(nodes) - rank)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with _pins_lock:
            for node in nodes:
                pin = _pins[node]
                pin[1] -= 1
                if not pin[1]:
                    node._set_sequence_nr(pin[0])  # type: ignore[attr-defined]
                    del _pins[node]


def graph_task_id() -> int:
    """Which run of the engine this hook is called in; a backward inside a backward has another. -1 outside."""
    return torch._C._current_graph_task_id()


def compiled_autograd_is_on() -> bool:
    """Whether torch.compile has replaced the autograd engine in this process."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.compiled_autograd_enabled or module.in_compiled_autograd_region)


Hooks = list[Callable[..., Any]]


def node_hooks(node: Node) -> tuple[Hooks, Hooks]:
    """The Python pre-hooks (`register_prehook`) and post-hooks (`register_hook`) of a node, in running order.

    torch lists them nowhere, but a handle knows the dict in which it stands.
    """
    return _hooks_of(node.register_prehook(_no_hook)), _hooks_of(node.register_hook(_no_hook))


def _no_hook(*args: Any) -> None:
    raise AssertionError("a hook that is taken away at once")


def _hooks_of(handle: RemovableHandle) -> Hooks:
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return list(hooks.values()) if hooks else []


def run_tensor_hooks(node: Node, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Runs the hooks of the tensors which `node` made (`Tensor.register_hook`, then `retain_grad`) as the engine does.

    Hooks of tensors that are gone can't be listed, but the engine runs them when a node's inputs are at once the roots
    and the wanted inputs of a backward: the node itself is then not executed. Where no gradient is there at all, there
    is nothing to start from, and no hook runs.
    """
    given = [number for number, gradient in enumerate(gradients) if gradient is not None]
    if not given:
        return list(gradients)
    edges = tuple(GradientEdge(node, number) for number in range(len(gradients)))
    return list(
        Variable._execution_engine.run_backward(
            tuple(edges[number] for number in given),
            tuple(gradients[number] for number in given),
            True,  # keep_graph
            False,  # create_graph
            edges,
            True,  # allow_unreachable
            False,  # accumulate_grad
        )
    )


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


def new_checkpoint_group() -> GraphExecGroup:
    """What makes checkpoints (use_reentrant=False) take all tasks for one backward, and recompute once."""
    return GraphExecGroup()


def in_checkpoint_group(group: GraphExecGroup) -> AbstractContextManager[Any]:
    """A context in which tasks belong to `group`, unless the user opened a group of his own."""
    return nullcontext() if torch._C._get_graph_exec_group() is not None else group


def without_torch_function() -> AbstractContextManager[Any]:
    """A context in which tensor subclasses and function modes are not asked what they think of it."""
    return torch._C.DisableTorchFunction()


def stored_values(tensor: Tensor) -> Tensor:
    """The elements that a sparse tensor stores. Of COO tensors they come as they are, not coalesced: no waiting."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def computes_itself(tensor: Tensor) -> bool:
    """Whether it is of a subclass that runs operations in its own way (`__torch_dispatch__`: DTensor, FakeTensor)."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


function_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
"""Whether a TorchFunctionMode watches this thread: then even reading a tensor's shape calls it."""


@contextmanager
def unobserved() -> Iterator[None]:
    """A context without grad mode, in which no mode and no tensor subclass of the user's sees what is done."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                yield
        else:
            yield
