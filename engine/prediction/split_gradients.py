"""Gradients that are DTensors: a node's metadata has the shape of the whole, and memory is that of one rank's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...inspector.graph.graph import Edge, Graph
from ...inspector.torch_internals.dtensors import given_part
from ...inspector.torch_internals.saved import saved_slots
from ...inspector.torch_internals.tensors import local_of

Parts = Mapping[tuple[int, int], tuple[int, ...]]
"""By task and number of its input the shape of this rank's part."""

_GIVES_LOCAL = "_FromTorchTensorBackward"
_TAKES_LOCAL = "_ToTorchTensorBackward"


def parts_of_gradients(graph: Graph, saves_subclass: Sequence[bool]) -> Parts:
    """Of each gradient that is known to be a DTensor this rank's part. Nothing runs, nor communicates.

    It is split as the tensor is whose gradient it is: a leaf, or what a node saved. What passes `to_local` and
    `redistribute` is split as these say. Between tasks of one shape the rest is taken to be split alike.

    Args:
        graph: the graph.
        saves_subclass: by task whether its node has saved one of torch's subclasses.
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
        if (part := given_part(node)) is not None:
            found.update(((edge.next_task, edge.input), part) for edge in graph.out_edges[task_id])
        if graph.tasks[task_id].name == _GIVES_LOCAL:
            for edge in graph.out_edges[task_id][:1]:
                found[task_id, 0] = graph.tasks[edge.next_task].inputs[edge.input].shape or ()
    if found:
        _spread(graph, found)
    return found


def _spread(graph: Graph, found: dict[tuple[int, int], tuple[int, ...]]) -> None:
    """What a task takes and gives in one shape is split alike, unless the task is where DTensors begin or end."""
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
