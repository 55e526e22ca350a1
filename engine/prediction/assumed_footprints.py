"""What a task is taken to do with memory where nobody can ask it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ...inspector.graph.graph import Graph, Root, TensorMeta
from ..memory.footprint import Footprint, Footprints, TaskOutput
from ..memory.layouts import TensorLayout, contiguous
from .dry_run_limits import OF_SHAPES, WORKSPACE
from .split_gradients import Parts

_VIEWS = frozenset(
    f"{name}Backward0" for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Alias")
)
"""The nodes that give a view of what they get, also of a DTensor."""

_SUM = "AddBackward0"
"""The node that gives on what it gets, to both terms."""


def assumed_layout(meta: TensorMeta, part: tuple[int, ...] | None = None) -> TensorLayout:
    """What a gradient is taken for where nothing but its metadata is known, and this rank's part if it is a DTensor."""
    if part is not None:
        return replace(contiguous(part, meta.dtype.itemsize), wrapped=True)
    return contiguous(meta.shape or (), meta.dtype.itemsize)


def assumed_gradient(graph: Graph, task_id: int, number: int, part: tuple[int, ...] | None = None) -> TensorLayout:
    """Return the assumed layout of a task's input. A transposed weight's gradient comes transposed (mm_mat2_backward):
    it becomes the weight's .grad without a copy."""
    task = graph.tasks[task_id]
    layout = assumed_layout(task.inputs[number], part)
    if task.name == _TRANSPOSES and len(layout.shape) == 2 and part is None:
        return replace(layout, strides=(1, layout.shape[0]))
    return layout


_TRANSPOSES = "TBackward0"


def assumed_footprint(graph: Graph, task_id: int, parts: Parts = MappingProxyType({})) -> Footprint:
    """What a task is taken to do where it can't be asked: each gradient that it gives is a new block.

    `parts`: of those that are DTensors this rank's part. Of these a view is one, and what a sum gives on is the same.
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
    """What is known of a tape, whose nodes can't be asked without running them."""
    tasks = tuple(None if task.is_leaf else assumed_footprint(graph, task.id) for task in graph.tasks)
    roots = tuple(assumed_layout(graph.tasks[root.task].inputs[root.input]) for root in graph.roots)
    return Footprints(graph, "cpu", "dry run", tasks, (), {}, roots, keep_graph=True, limits=(WORKSPACE, OF_SHAPES))


_ON_THE_WHOLE = frozenset(("MseLossBackward0", "SmoothL1LossBackward0", "SoftMarginLossBackward0"))
"""Losses that leave their result on a storage as large as what they sum, which becomes it in place (Loss.cpp)."""


def assumed_result_bytes(graph: Graph, root: Root) -> int:
    """The storage of a result which nobody holds any more but the backward that is to start from it."""
    nbytes = graph.tasks[root.task].inputs[root.input].nbytes or 0
    if graph.tasks[root.task].name not in _ON_THE_WHOLE:
        return nbytes
    summed = [graph.tasks[edge.next_task].inputs[edge.input].nbytes or 0 for edge in graph.out_edges[root.task]]
    return max([nbytes, *summed])
