"""Nodes of a graph: their input gradients, leaves and types, how to call one, and hooks on new ones."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any, Never
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function, FunctionCtx
from torch.autograd.graph import GradientEdge, Node

from .thread_state import DispatchMode, close_mode, open_mode, unobserved

InputMetadata = tuple[tuple[int, ...] | None, torch.dtype, torch.device, bool]
"""A gradient's shape (None for nested tensors), dtype and device, and whether the engine accepts any dtype.

In that case the dtype is the forward output's."""


def output_metadata(node: Node) -> tuple[InputMetadata, ...]:
    """Return the metadata of each output of `node`'s forward operation. The dtypes of its gradients may differ."""
    metas: list[Any] = node._input_metadata
    return tuple(
        [(None if meta.is_nested_tensor else tuple(meta.shape), meta.dtype, meta.device, False) for meta in metas]
    )


def input_shapes(node: Node) -> list[tuple[int, ...] | None]:
    """Return the shape of each input gradient of `node`; None for a nested tensor."""
    metas: list[Any] = node._input_metadata
    return [None if meta.is_nested_tensor else tuple(meta.shape) for meta in metas]


def input_metadata(node: Node) -> tuple[InputMetadata, ...]:
    """Return the metadata of each input gradient of `node`. For several nodes, `input_metadata_of_each` is cheaper."""
    (found,) = input_metadata_of_each((node,))
    return found


def input_metadata_of_each(nodes: Iterable[Node]) -> list[tuple[InputMetadata, ...]]:
    """Return the metadata of each input gradient of these nodes, with the dtype to which the engine casts it.

    For leaves, `Tensor.grad_dtype` is ignored, because it may still change; see `gradient_dtypes`.
    """
    found: list[tuple[InputMetadata, ...]] = []
    add = found.append
    nodes = list(nodes)
    for node in nodes:
        metas: list[Any] = node._input_metadata
        if len(metas) == 1:
            (meta,) = metas
            add(((None if meta.is_nested_tensor else tuple(meta.shape), meta.dtype, meta.device, False),))
        else:
            add(output_metadata(node))
    for (place, number), dtype in _declared_dtypes(nodes, found).items():
        inputs = list(found[place])
        shape, usual, device, _ = inputs[number]
        inputs[number] = shape, dtype or usual, device, dtype is None
        found[place] = tuple(inputs)
    return found


_Input = tuple[int, int]
"""An input of a node: the index of the node in a sequence, and the number of the input."""


_FUNCTIONS_DECLARE = hasattr(FunctionCtx, "set_output_grad_dtype")  # torch 2.14
_CPU = torch.device("cpu")


def _declared_dtypes(
    nodes: Sequence[Node], metas: Sequence[tuple[InputMetadata, ...]]
) -> dict[_Input, torch.dtype | None]:
    """Find the gradients that the engine casts to another dtype than the forward output's; None means no cast.

    A custom Function declares these dtypes for its outputs (`ctx.set_output_grad_dtype`). `Tensor.grad_dtype` declares
    one for a leaf, and stays in effect when an operation modifies the leaf in place. Only the engine knows either, so
    it is passed a probe for each input (see `_accepts`). A None from `Tensor.grad_dtype` would need a second probe, and
    is not found here; see `is_cast`.
    """
    usual: list[_Input] = []
    edges: list[GradientEdge] = []  # of unambiguous inputs
    probes: list[_Probe] = []
    declarable: list[_Input] = []
    doubtful: list[_Input] = []  # may be a Function's output without a gradient, for which the engine raises
    shared: dict[InputMetadata, _Probe | None] = {}
    kinds: dict[type[Node], str] = {}
    with unobserved():
        for place, (node, inputs) in enumerate(zip(nodes, metas, strict=True)):
            if (kind := kinds.get(type(node))) is None:
                kind = "Function" if issubclass(type(node), BackwardCFunction) else type(node).__name__
                kinds[type(node)] = kind
            if kind == "AccumulateGrad":
                continue
            for number, facts in enumerate(inputs):
                try:
                    probe = shared[facts]
                except KeyError:
                    shape, dtype, device, _ = facts
                    probe = None
                    if shape is not None and (dtype.is_floating_point or dtype.is_complex):
                        probe = _Probe(shape, dtype, device)
                    shared[facts] = probe
                except TypeError:  # torch.SymInt has no hash
                    continue
                if probe is None:
                    continue
                if len(inputs) > 1 and not facts[0] and facts[2] == _CPU:
                    doubtful.append((place, number))
                elif kind == "Function" and _FUNCTIONS_DECLARE:
                    declarable.append((place, number))
                else:
                    usual.append((place, number))
                    edges.append(GradientEdge(node, number))
                    probes.append(probe)
        if not _accepts(edges, probes):
            doubtful += usual
        elif any(probe is not None and probe.cast_to is not None for probe in shared.values()):
            declarable += [each for each, probe in zip(usual, probes, strict=True) if probe.cast_to is not None]
        declared = _probed_dtypes(declarable, nodes, metas)
        if declared is None:
            declared, doubtful = {}, declarable + doubtful
        for each in doubtful:
            declared.update(_probed_dtypes([each], nodes, metas) or {})
    return declared


def _probed_dtypes(
    inputs: Sequence[_Input], nodes: Sequence[Node], metas: Sequence[tuple[InputMetadata, ...]]
) -> dict[_Input, torch.dtype | None] | None:
    """Return the declared dtypes of these inputs' gradients, or None if the engine raises for an input."""
    edges = [GradientEdge(nodes[place], number) for place, number in inputs]
    own, others = [], []
    for place, number in inputs:
        shape, dtype, device, _ = metas[place][number]
        own.append(_Probe(shape or (), dtype, device))
        wide, narrow = (torch.complex128, torch.complex64) if dtype.is_complex else (torch.float64, torch.float32)
        others.append(_Probe(shape or (), narrow if dtype is wide else wide, device))
    if not _accepts([*edges, *edges], [*own, *others]):
        return None
    found = zip(inputs, own, others, strict=True)
    return {each: one.cast_to for each, one, other in found if one.cast_to is not None or other.cast_to is None}


def is_cast(node: Node, number: int, dtype: torch.dtype) -> bool:
    """Return whether the engine casts a gradient of this dtype, which differs from the dtype in the input's metadata.

    It does not if `Tensor.grad_dtype` was None on a leaf that an operation then modified in place.
    """
    (shape, _, device, _) = output_metadata(node)[number]
    if shape is None:
        return True
    with unobserved():
        probe = _Probe(shape, dtype, device)
        return not _accepts([GradientEdge(node, number)], [probe]) or probe.cast_to is not None


class InputCheck:
    """Checks whether nodes have the input metadata of earlier ones, without reading it from each node.

    The engine compares the metadata with a probe for each input, in one call (see `_accepts`).
    """

    def __init__(self, nodes: Sequence[Node], metas: Sequence[tuple[InputMetadata, ...]]) -> None:
        self._places = [place for place, inputs in enumerate(metas) for _ in inputs]
        self._numbers = [number for inputs in metas for number in range(len(inputs))]
        kinds: dict[InputMetadata, int] = {}
        self._kinds = [kinds.setdefault(facts, len(kinds)) for facts in chain.from_iterable(metas)]
        self._distinct = list(kinds)
        self._read = _places_to_read(nodes)
        self._devices = [[device for _, _, device, _ in metas[place]] for place in self._read]

    @staticmethod
    def of(nodes: Sequence[Node], metas: Sequence[tuple[InputMetadata, ...]]) -> InputCheck | None:
        """Return a check for nodes of the same types and edges, or None if probes do not show all of the metadata."""
        for node, inputs in zip(nodes, metas, strict=True):
            for shape, dtype, device, any_dtype in inputs:
                if shape is None or any_dtype or not (dtype.is_floating_point or dtype.is_complex):
                    return None
                if len(inputs) > 1 and not shape and device == _CPU:  # as in `_declared_dtypes`
                    return None
            if _FUNCTIONS_DECLARE and isinstance(node, BackwardCFunction):
                return None
        return InputCheck(nodes, metas)

    def holds_for(self, nodes: Sequence[Node]) -> bool:
        """Return whether these nodes have the metadata. Their types and edges must be the same."""
        # The engine does not check the numbers of inputs, and the devices of tensor subclasses such as probes only for
        # scalars (engine.cpp, validate_outputs).
        if [_devices_of(nodes[place]) for place in self._read] != self._devices:
            return False
        with unobserved():
            edges = list(map(GradientEdge, map(nodes.__getitem__, self._places), self._numbers))
            # Kept probes would be among the program's tensors for whoever counts these.
            probes = [_Probe(shape or (), dtype, device) for shape, dtype, device, _ in self._distinct]
            return _accepts(edges, list(map(probes.__getitem__, self._kinds)), _comparing)


def _devices_of(node: Any) -> list[torch.device]:
    return [meta.device for meta in node._input_metadata]


def _places_to_read(nodes: Sequence[Node]) -> list[int]:
    """Return the places of the nodes whose number of inputs or whose device does not follow from the types of nodes.

    A node is on the same device as the node that leads to it, unless that node copied its input to another device. A
    scalar may be on any device, but its device is checked by the engine, also for tensor subclasses.
    """
    places = {node: place for place, node in enumerate(nodes)}
    found, below = set[int](), set[int]()
    for place, node in enumerate(nodes):
        kind, nexts = type(node), [places[child] for child, _ in node.next_functions if child in places]
        below.update(nexts)
        if kind.__name__ in _COPIES or issubclass(kind, BackwardCFunction) or not _has_fixed_inputs(kind.__name__):
            found.update((place, *nexts))
    return sorted(found | (set(places.values()) - below))


_COPIES = ("ToCopyBackward0", "CopyBackwards")


@cache
def _has_fixed_inputs(kind: str) -> bool:
    """Return whether all C++ nodes of this type have the same number of inputs: those of operators that return no
    lists.

    The type of an operator's node is named after it (torchgen's load_derivatives.py): `_foo_bar` has FooBarBackward0.
    """
    if kind == "AccumulateGrad":
        return True
    camel = _OPERATORS_NODE.fullmatch(kind)
    if camel is None:
        return False
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", camel[1]).lower()
    names = [f"aten::{before}{snake}{after}" for before in ("", "_") for after in ("", "_")]
    schemas = list(chain.from_iterable(map(torch._C._jit_get_schemas_for_operator, names)))
    return bool(schemas) and not any(str(each.type) == "List[Tensor]" for schema in schemas for each in schema.returns)


_OPERATORS_NODE = re.compile(r"(\w+)Backward\d+")


def _accepts(edges: Sequence[GradientEdge], probes: Sequence[_Probe], mode: _NotingCasts | None = None) -> bool:
    """Have the engine check and cast probes as gradients for these edges. Return whether it accepts all of them.

    `mode` handles the operations; None for one that records the casts.

    A backward first checks and casts its initial gradients, one after the other (engine.cpp, validate_outputs). The
    last one here has an extra dimension, and raises when the engine sums over it. So no node is executed and no hook
    runs.
    """
    if not edges:
        return True
    last, mode = probes[-1], mode or _noting_casts
    end = _LastProbe((2, *last.shape), last.dtype, last.device)
    try:
        open_mode(mode)
        _engine.run_backward((*edges, edges[-1]), (*probes, end), True, False, (), True, True)
    except _AllCheckedError:
        return True
    except RuntimeError:
        return False
    finally:
        try:
            _close(mode)
        except BaseException:  # Ctrl-C
            _close(mode)
            raise
    raise AssertionError("PyTorch's engine accepted a gradient with one dimension too many")


def _close(mode: _NotingCasts) -> None:
    """Close the mode, unless an interrupt (Ctrl-C) came before it was open."""
    depth = torch._C._len_torch_dispatch_stack()
    if depth and torch._C._get_dispatch_stack_at(depth - 1) is mode:
        close_mode(None)


_engine: Any = torch._C._ImperativeEngine()


class _AllCheckedError(Exception):
    """Raised when the engine reaches the last probe."""


class _Probe(Tensor):
    """A gradient without memory.

    Attributes:
        cast_to: the dtype to which it was cast; None if it was not.
    """

    __slots__ = ("cast_to",)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    cast_to: torch.dtype | None

    @staticmethod
    def __new__(cls: type[_Probe], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> _Probe:
        made: _Probe = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.cast_to = None
        return made

    @classmethod
    def __torch_dispatch__(cls, *args: Any) -> Never:
        """Required by torch; never called, because the mode handles all operations."""
        raise _AllCheckedError


class _LastProbe(_Probe):
    """The probe over which the engine sums."""

    __slots__ = ()


class _NotingCasts(DispatchMode):  # type: ignore[no-untyped-call]
    """Records the casts of probes. Without a mode torch would call the class, after importing all of DTensor."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is not torch.ops.aten._to_copy.default:
            raise _AllCheckedError
        probe: _Probe = args[0]
        probe.cast_to = kwargs["dtype"]
        return _Probe(tuple(probe.shape), kwargs["dtype"], probe.device)


class _Comparing(_NotingCasts):  # type: ignore[no-untyped-call]
    """Refuses probes that the engine has to convert, except the last one."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _AllCheckedError if isinstance(args[0], _LastProbe) else RuntimeError("the metadata differs")


_noting_casts = _NotingCasts()
_comparing = _Comparing()


def types_of(nodes: Iterable[Node]) -> tuple[Hashable, ...]:
    """Return the type of each node, safe to keep: a custom Function's type is referenced weakly.

    It may be created in each forward, and have tensors in its closures.
    """
    types = tuple(map(type, nodes))
    of_functions = {kind: ref(kind) for kind in set(types) if issubclass(kind, BackwardCFunction)}
    return tuple([of_functions.get(kind, kind) for kind in types]) if of_functions else types


def notes_on(node: Node) -> dict[str, Any]:
    """Return the metadata dict of a node, open to any use; it lives as long as the node."""
    notes: dict[str, Any] = node.metadata  # type: ignore[assignment]
    return notes


def leaf_of(node: Node) -> Tensor:
    """Return the leaf whose .grad an AccumulateGrad writes."""
    leaf: Tensor = node.variable  # type: ignore[attr-defined]
    return leaf


def leaf_if_any(node: Node) -> Tensor | None:
    """Return the leaf of a node without a sequence number, or None.

    Such a node is an AccumulateGrad, or one that only raises that a derivative is not implemented.
    """
    return getattr(node, "variable", None)


def have_grad(nodes: Iterable[Node]) -> tuple[bool, ...]:
    """Return for each of these nodes whether it is a leaf's, and the leaf has a .grad."""
    # `ctx.variable` of a custom Function may be anything.
    leaves = [None if isinstance(node, BackwardCFunction) else leaf_if_any(node) for node in nodes]
    return tuple([leaf is not None and leaf.grad is not None for leaf in leaves])


def function_of(node: BackwardCFunction) -> type[Function]:
    """Return the custom Function whose backward the node runs."""
    function: type[Function] = node._forward_cls  # type: ignore[attr-defined]
    return function


def call_node(node: Node, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Call the node of a C++ or custom Function without its hooks. A single output is also returned as a tuple."""
    outputs = node(*gradients) if callable(node) else node.apply(*gradients)  # type: ignore[attr-defined]
    return outputs if type(outputs) is tuple else (outputs,)


TELLS_OF_NEW_NODES = hasattr(torch.autograd.graph, "node_creation_hook")
"""True if torch calls hooks with each new node (2.14+)."""


class _Slot:
    """A hook of ours among this thread's.

    Attributes:
        hook: called with each new node; None if the slot is unused.
        is_sunk: whether hooks of users may be above it on the stack, so that it cannot be removed.
        is_kept: whether it stays when it is unused.
        backward: the number of the backward in which it was registered; -1 outside of one.
    """

    __slots__ = ("backward", "hook", "is_kept", "is_sunk")

    def __init__(self) -> None:
        self.hook: Callable[[Node], None] | None = None
        self.is_sunk = self.is_kept = False
        self.backward = _current_backward()


class _Slots(threading.local):
    def __init__(self) -> None:
        self.pushed: list[_Slot] = []


_slots = _Slots()
_current_backward: Callable[[], int] = torch._C._current_graph_task_id


@contextmanager
def watching_new_nodes(hook: Callable[[Node], None]) -> Iterator[None]:
    """Call `hook` with each new node of this thread and of the threads of its backwards, except leaves' nodes.

    Users' hooks are called in the order of registration. torch can only remove the hook registered last, so a context
    that is exited out of order, or garbage collected, leaves an unused slot behind for the thread's next context. The
    same happens if it is exited inside a backward, because torch restores the thread's hooks at the end of a backward.
    For that reason a context entered in a backward ends with it, unless `ready_for_new_nodes` was entered before.
    """
    slot = _free_slot()
    slot.hook = hook
    try:
        yield
    except GeneratorExit:
        slot.is_sunk = True
        raise
    finally:
        slot.hook = None
        _take_away(slot)


@contextmanager
def ready_for_new_nodes() -> Iterator[None]:
    """Let `watching_new_nodes` be entered inside a backward and outlast it. Enter this outside of any backward."""
    if not TELLS_OF_NEW_NODES:
        yield
        return
    slot = _free_slot()
    slot.is_kept = True
    try:
        yield
    finally:
        slot.is_kept = False
        _take_away(slot)


def _free_slot() -> _Slot:
    pushed = _slots.pushed
    while pushed and pushed[-1].backward not in (-1, _current_backward()):
        pushed.pop()  # removed by torch at the end of its backward
    if not pushed or pushed[-1].hook is not None:
        slot = _Slot()
        leaf = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

        def fire(node: Node) -> None:
            if type(node) is not leaf and (hook := slot.hook) is not None:
                hook(node)

        torch._C._autograd._push_node_creation_hook(fire)  # type: ignore[attr-defined]
        pushed.append(slot)
    return pushed[-1]


def _take_away(slot: _Slot) -> None:
    pushed = _slots.pushed
    if not pushed or pushed[-1] is not slot:
        slot.is_sunk = True
    elif not (slot.is_sunk or slot.is_kept or slot.hook) and slot.backward == _current_backward():
        torch._C._autograd._pop_node_creation_hook()  # type: ignore[attr-defined]
        pushed.pop()
