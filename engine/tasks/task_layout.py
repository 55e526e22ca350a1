"""What the loop of `BareTasks` has to know of each task: read once for all graphs that are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import Node

from ...inspector.graph.graph import Edge, Graph, TensorMeta
from ...inspector.graph.kinds import Kind
from ...inspector.torch_internals.saved import SavedReader, hides_saved, saved_reader


class Way(NamedTuple):
    """An edge from a task: to this input of the next one, which has so many."""

    output: int
    next_task: int
    input: int
    inputs: int


class Received(NamedTuple):
    """What the gradient on an edge has to be to need no fitting."""

    output: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    edge: Edge


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """The tasks of a graph.

    Attributes:
        ways: by task where its outputs go.
        takes: by task, for each of its ways, what the next task takes there.
        leaves: by task whether it is an AccumulateGrad.
        readers: by task what reads the tensors that its node keeps; None where it keeps none.
        special: those which the loop can't run.
    """

    ways: list[tuple[Way, ...]]
    takes: list[tuple[Received, ...]]
    leaves: list[bool]
    readers: list[SavedReader | None]
    special: frozenset[int]

    @staticmethod
    def of(graph: Graph, takes: list[tuple[TensorMeta, ...]], as_in_graph: bool) -> TaskLayout:
        """That of the graph.

        Args:
            takes: by task what it takes.
            as_in_graph: whether that is what the graph says.
        """
        like = graph.like
        if like.nodes or not as_in_graph:  # it was compared with none
            return _read(graph, takes)
        found = _known.get(like)
        if found is None:
            found = _known[like] = _read(graph, takes)
        return found


_known: WeakKeyDictionary[Graph, TaskLayout] = WeakKeyDictionary()


def _read(graph: Graph, takes: list[tuple[TensorMeta, ...]]) -> TaskLayout:
    leaf, plain = Kind.ACCUMULATE_GRAD, Kind.CPP
    leaves = [task.kind is leaf for task in graph.tasks]
    special = {task.id for task in graph.tasks if task.kind is not plain and task.kind is not leaf}
    readers: dict[type[Node], SavedReader | None] = {}
    found: list[SavedReader | None] = [None] * len(graph)
    for task_id, node in enumerate(graph.nodes):
        if leaves[task_id] or task_id in special:
            continue
        kind = type(node)
        if kind not in readers:
            readers[kind] = saved_reader(node)
        found[task_id] = readers[kind]
        if hides_saved(node):
            special.add(task_id)
    ways = [
        tuple([Way(edge.output, edge.next_task, edge.input, len(takes[edge.next_task])) for edge in edges])
        for edges in graph.out_edges
    ]
    taken = [tuple([_taken(edge, takes[edge.next_task][edge.input]) for edge in edges]) for edges in graph.out_edges]
    return TaskLayout(ways, taken, leaves, found, frozenset(special))


def _taken(edge: Edge, meta: TensorMeta) -> Received:
    return Received(edge.output, meta.shape, meta.dtype, meta.device, edge)
