"""What a task is taken to do with memory where nobody can ask it."""

from __future__ import annotations

from ...inspector.graph.graph import Graph, TensorMeta
from ..memory.footprint import Footprint, TaskOutput, TensorLayout
from ..memory.layouts import contiguous


def assumed_layout(meta: TensorMeta) -> TensorLayout:
    """What a gradient is taken for where nothing but its metadata is known."""
    return contiguous(meta.shape or (), meta.dtype.itemsize)


def assumed_footprint(graph: Graph, task_id: int) -> Footprint:
    """What a task is taken to do where it can't be asked: each gradient that it gives is a new block."""
    outputs: list[TaskOutput | None] = []
    blocks: list[int] = []
    for edge in graph.out_edges[task_id]:
        layout = assumed_layout(graph.tasks[edge.next_task].inputs[edge.input])
        outputs.extend([None] * (edge.output - len(outputs)))
        outputs.append(TaskOutput("block", len(blocks), layout, keeps_base=False))
        blocks.append(layout.nbytes)
    return Footprint(tuple(range(len(blocks))), tuple(blocks), tuple(outputs), inputs=())
