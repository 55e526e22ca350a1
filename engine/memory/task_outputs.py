"""The storage and layout of each output of a task: found by calling the node, or assumed if it cannot be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ...inspector.graph.graph import Edge, Graph, Root, TensorMeta
from ...inspector.torch_private.distributed import local_gradient_shape
from ...inspector.torch_private.saved_variables import saved_slots, saved_value
from ...inspector.torch_private.tensors import is_view, local_of, storage_of
from ..execution.gradient_layouts import TensorLayout, contiguous, is_dense, layout_of
from .estimates import OF_SHAPES, WORKSPACE
from .task_memory import Footprint, Footprints, TaskOutput

if TYPE_CHECKING:
    from ...inspector.torch_private.operators import FakeOperations

Parts = Mapping[tuple[int, int], tuple[int, ...]]
"""The shape of this rank's part, by task and number of its input."""

_GIVES_LOCAL = "_FromTorchTensorBackward"
_TAKES_LOCAL = "_ToTorchTensorBackward"


def parts_of_gradients(graph: Graph, saves_subclass: Sequence[bool]) -> Parts:
    """Return this rank's part of each gradient that is known to be a DTensor. Nothing runs or communicates.

    A gradient is split like its tensor: a leaf, or a saved tensor. Gradients through `to_local` and `redistribute` are
    split as these define. The rest are assumed to be split alike between tasks of one shape.

    Args:
        graph: the graph.
        saves_subclass: by task, whether its node has saved one of torch's subclasses.
    """
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    ids = {node: task_id for task_id, node in enumerate(graph.nodes)} if any(saves_subclass) else {}
    for task_id, leaf in graph.leaves.items():
        if (local := local_of(leaf)) is not leaf:
            found[task_id, 0] = tuple(local.shape)
    for task_id, node in enumerate(graph.nodes):
        for slot in saved_slots(node) if saves_subclass[task_id] else ():
            local, maker = local_of(slot.tensor), ids.get(slot.maker) if slot.maker is not None else None
            if maker is not None and local is not slot.tensor:
                found[maker, slot.tensor.output_nr] = tuple(local.shape)
        if (part := local_gradient_shape(node)) is not None:
            found.update(((edge.next_task, edge.input), part) for edge in graph.out_edges[task_id])
        if graph.tasks[task_id].name == _GIVES_LOCAL:
            for edge in graph.out_edges[task_id][:1]:
                found[task_id, 0] = graph.tasks[edge.next_task].inputs[edge.input].shape or ()
    if found:
        _spread(graph, found)
    return found


def _spread(graph: Graph, found: dict[tuple[int, int], tuple[int, ...]]) -> None:
    """Assume that inputs and outputs of one shape are split alike, unless DTensors begin or end at the task."""
    inside = [edge for edge in graph.edges if graph.tasks[edge.task].name not in (_GIVES_LOCAL, _TAKES_LOCAL)]
    for edges in (inside, reversed(inside)):
        for edge in edges:
            _alike(graph, edge, found)


def _alike(graph: Graph, edge: Edge, found: dict[tuple[int, int], tuple[int, ...]]) -> None:
    given = edge.next_task, edge.input
    shape = graph.tasks[edge.next_task].inputs[edge.input].shape
    for number, meta in enumerate(graph.tasks[edge.task].inputs):
        taken = edge.task, number
        if meta.shape == shape and (taken in found) != (given in found):
            found[given if taken in found else taken] = found[taken if taken in found else given]


_VIEWS = frozenset(
    f"{name}Backward0" for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Alias")
)
"""The nodes that return a view of their input, also for a DTensor."""

_SUM = "AddBackward0"
"""The node that returns its input for both terms."""


def assumed_layout(meta: TensorMeta, part: tuple[int, ...] | None = None) -> TensorLayout:
    """Return the assumed layout of a gradient if only its metadata is known, and this rank's part of a DTensor."""
    if part is not None:
        return replace(contiguous(part, meta.dtype.itemsize), wrapped=True)
    return contiguous(meta.shape or (), meta.dtype.itemsize)


def assumed_gradient(graph: Graph, task_id: int, number: int, part: tuple[int, ...] | None = None) -> TensorLayout:
    """Return the assumed layout of a task's input. A transposed weight's gradient is transposed (mm_mat2_backward), so
    it becomes the weight's .grad without a copy."""
    task = graph.tasks[task_id]
    layout = assumed_layout(task.inputs[number], part)
    if task.name == _TRANSPOSES and len(layout.shape) == 2 and part is None:
        return replace(layout, strides=(1, layout.shape[0]))
    return layout


_TRANSPOSES = "TBackward0"


def assumed_footprint(graph: Graph, task_id: int, parts: Parts = MappingProxyType({})) -> Footprint:
    """Return the assumed footprint of a task that cannot be called: each gradient that it returns is a new block.

    Args:
        graph: the graph.
        task_id: the task.
        parts: this rank's part of each gradient that is a DTensor. For these, a view's output is a view, and a sum
            returns its input.
    """
    outputs: list[TaskOutput | None] = []
    blocks: list[int] = []
    name, taken = graph.tasks[task_id].name, parts.get((task_id, 0))
    for edge in graph.out_edges[task_id]:
        part = parts.get((edge.next_task, edge.input))
        layout = assumed_gradient(graph, edge.next_task, edge.input, part)
        outputs.extend([None] * (edge.output - len(outputs)))
        if name in _VIEWS and taken is not None:
            outputs.append(TaskOutput("view", 0, layout, keeps_base=True))
        elif name == _SUM and taken is not None and taken == part:
            outputs.append(TaskOutput("input", 0, layout, keeps_base=False))
        else:
            outputs.append(TaskOutput("block", len(blocks), layout, keeps_base=False))
            blocks.append(layout.nbytes)
    return Footprint(tuple(range(len(blocks))), tuple(blocks), tuple(outputs), inputs=())


def of_shapes(graph: Graph) -> Footprints:
    """Return the footprints of a tape by shapes only, because its nodes cannot be called without running them."""
    tasks = tuple(None if task.is_leaf else assumed_footprint(graph, task.id) for task in graph.tasks)
    roots = tuple(assumed_layout(graph.tasks[root.task].inputs[root.input]) for root in graph.roots)
    return Footprints(graph, "cpu", "dry run", tasks, (), {}, roots, keep_graph=True, limits=(WORKSPACE, OF_SHAPES))


_ON_THE_WHOLE = frozenset(("MseLossBackward0", "SmoothL1LossBackward0", "SoftMarginLossBackward0"))
"""Losses whose result keeps the storage of all elements, which they reduce in place (Loss.cpp)."""


def assumed_result_bytes(graph: Graph, root: Root) -> int:
    """Return the bytes of a result's storage that only the coming backward still holds."""
    nbytes = graph.tasks[root.task].inputs[root.input].nbytes or 0
    if graph.tasks[root.task].name not in _ON_THE_WHOLE:
        return nbytes
    summed = [graph.tasks[edge.next_task].inputs[edge.input].nbytes or 0 for edge in graph.out_edges[root.task]]
    return max([nbytes, *summed])


class Gradient(NamedTuple):
    """The memory-relevant facts about a gradient between two tasks."""

    layout: TensorLayout
    dtype: torch.dtype
    device: torch.device
    conjugated: bool = False
    negated: bool = False

    @staticmethod
    def of(tensor: Tensor) -> Gradient:
        return Gradient(layout_of(tensor), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


class Answer(NamedTuple):
    """The effect of a task: its footprint, and the gradients that it returns."""

    footprint: Footprint
    gradients: tuple[Gradient | None, ...]
    unknown: tuple[tuple[str, str], ...] = ()  # (reason, operator) of unknown workspaces


def origins_of(
    operations: FakeOperations, given: list[Tensor | None], outputs: list[Tensor | None], stored: list[Tensor | None]
) -> Iterator[TaskOutput | None]:
    inputs = {id(each): number for number, each in reversed([*enumerate(given)]) if each is not None}
    storages = {storage_of(each): inputs[id(each)] for each in given if each is not None}
    numbers: dict[int, int] = {}  # the first output on each of the task's own blocks
    firsts: dict[int, int] = {}  # the output of each tensor returned so far, by id()
    for position, (whole, output) in enumerate(zip(outputs, stored, strict=True)):
        if whole is None or output is None:
            yield None
            continue
        layout, keeps_base = layout_of(whole), is_view(output)
        same = inputs.get(id(whole), -1)
        before = firsts.setdefault(id(whole), position)
        block = operations.number(output)
        if same >= 0:
            yield TaskOutput("input", same, layout, keeps_base)
        elif before < position:
            yield TaskOutput("output", before, layout, keeps_base)
        elif block in numbers:
            yield TaskOutput("output view", numbers[block], layout, keeps_base)
        elif block >= 0:
            numbers[block] = position
            yield TaskOutput("block", block, layout, keeps_base)
        else:
            storage = storage_of(output)
            shared = -1 if storage is None else storages.get(storage, -1)
            yield TaskOutput("view" if shared >= 0 else "outside", shared, layout, keeps_base)


PARTING = ("StackBackward0", "CatBackward0")


def parts_of(
    node: Node, gradient: TensorLayout, dtype: torch.dtype, takes: Mapping[int, TensorMeta]
) -> tuple[TaskOutput, ...] | None:
    """Return the outputs of a node of `PARTING` (FunctionsManual.cpp, unbind and cat_tensors_backward).

    Args:
        node: the node.
        gradient, dtype: the layout and dtype of its one input.
        takes: the metadata that the next task expects, for each output with a next task.

    Returns:
        The outputs. None if they are not the parts that the next tasks expect, or if the shapes do not determine them;
        then the node has to be called.
    """
    if gradient.sparse or any(each.dtype is not dtype for each in takes.values()):
        return None
    dim, dims = saved_value(node, "dim"), len(gradient.shape)
    dim = dim if dim < dims else dim - (1 << 64) + dims  # torch shows a negative number without its sign
    before, after = gradient.shape[:dim], gradient.shape[dim + 1 :]
    shapes = {number: tuple(each.shape or ()) for number, each in takes.items()}
    count = len(node.next_functions)
    if node.name() == "StackBackward0":
        shapes = dict.fromkeys(range(count), before + after) | shapes
        strides = gradient.strides[:dim] + gradient.strides[dim + 1 :]
        known = all(shape == before + after for shape in shapes.values())
    else:
        strides = gradient.strides
        known = all((shape[:dim], shape[dim + 1 :]) == (before, after) for shape in shapes.values())
        # Not if some outputs have no next task: their share is unknown. Nor with the empty vectors that cat skips.
        known = known and len(shapes) == count
        known = known and sum(shape[dim] for shape in shapes.values()) == gradient.shape[dim]
    if not known:
        return None
    parts = {shape: TaskOutput("view", 0, _view(gradient, shape, strides), True) for shape in set(shapes.values())}
    return tuple(parts[shapes[number]] for number in range(count))


def _view(gradient: TensorLayout, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorLayout:
    itemsize = gradient.nbytes // prod(gradient.shape) if gradient.nbytes else 0
    return replace(
        gradient, shape=shape, strides=strides, dense=is_dense(shape, strides), nbytes=prod(shape) * itemsize
    )
