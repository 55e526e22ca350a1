"""What a task is by what it reaches and by what reaches it, so that tasks of two graphs can be told to be the same."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property, lru_cache

from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.graph.kinds import short_name
from ...inspector.graph.ranks import ranks_of

COMMUTATIVE = frozenset({"Add", "Mul", "Maximum", "Minimum", "Hypot", "Logaddexp"})
"""Which of two operands comes first is no difference."""

_CASTS = frozenset({"ToCopy"})  # what autocast puts between two tasks
_OF_A_DEVICE = re.compile(r"^(?:Native|Cudnn|Miopen)(?=BatchNorm)|(?<=ScaledDotProduct)\w+?(?=Attention)|ForCpu$")


class Surveyed:
    """What the signatures of a graph's tasks are made of, whatever is known of them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.labels = list(map(label, graph.tasks))
        self.outputs = [[_output(task, edge) for edge in graph.out_edges[task.id]] for task in graph.tasks]
        self.casts = {task.id for task in graph.tasks if _kind(task.name) in _CASTS}
        self.sources_first = ranks_of(len(graph), ((edge.task, edge.next_task) for edge in graph.edges))[1]


class Signatures:
    """Numbers for a graph's tasks that are equal for equal surroundings, in all graphs that share a table.

    Args:
        surveyed: the graph.
        known: by task what it is known as in both graphs.
        table: numbers what has been seen; shared by the graphs that are compared.
    """

    def __init__(self, surveyed: Surveyed, known: Mapping[int, int], table: dict[Hashable, int]) -> None:
        self._surveyed = surveyed
        self._graph = surveyed.graph
        self._known = known
        self._table = table

    def _number(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))

    @cached_property
    def below(self) -> list[int]:
        """By task: of all that it reaches, up to what is known."""
        found = [0] * len(self._graph)
        for task_id in reversed(self._surveyed.sources_first):
            edges = self._graph.out_edges[task_id]
            if task_id in self._known:
                found[task_id] = self._number(("known", self._known[task_id]))
            elif task_id in self._surveyed.casts and len(edges) == 1:
                found[task_id] = found[edges[0].next_task]
            else:
                reached = [found[edge.next_task] for edge in edges]
                below = sorted(zip(self._surveyed.outputs[task_id], reached, strict=True))
                found[task_id] = self._number(("below", self._surveyed.labels[task_id], *below))
        return found

    @cached_property
    def above(self) -> list[int]:
        """By task: of all that reaches it, up to what is known."""
        found = [0] * len(self._graph)
        arriving: list[list[tuple[int, ...]]] = [[] for _ in self._graph.tasks]
        for place, root in enumerate(self._graph.roots):
            arriving[root.task].append((-1, place))
        for task_id in self._surveyed.sources_first:
            known = self._known.get(task_id)
            above = sorted(arriving[task_id])
            label = self._surveyed.labels[task_id]
            found[task_id] = self._number(("above", label, *above) if known is None else ("known", known))
            is_cast = known is None and task_id in self._surveyed.casts
            for edge, output in zip(self._graph.out_edges[task_id], self._surveyed.outputs[task_id], strict=True):
                given = [each[:-1] for each in above] if is_cast else [(found[task_id], output)]
                arriving[edge.next_task] += [(*each, edge.input) for each in given]
        return found

    @cached_property
    def is_known(self) -> list[bool]:
        """By task whether each way down from it ends at what is known."""
        found = [False] * len(self._graph)
        for task_id in reversed(self._surveyed.sources_first):
            edges = self._graph.out_edges[task_id]
            found[task_id] = task_id in self._known or (bool(edges) and all(found[edge.next_task] for edge in edges))
        return found

    @cached_property
    def next_known(self) -> list[frozenset[int]]:
        """By task what is known of what it leads to at once, or through tasks that lead on to one task each."""
        found: list[frozenset[int]] = [frozenset()] * len(self._graph)
        for task_id in reversed(self._surveyed.sources_first):
            found[task_id] = frozenset(self._steps_down(task_id, found))
        return found

    def _steps_down(self, task_id: int, found: list[frozenset[int]]) -> Iterator[int]:
        for edge in self._graph.out_edges[task_id]:
            if edge.next_task in self._known:
                yield self._known[edge.next_task]
            elif len(self._graph.out_edges[edge.next_task]) == 1:
                yield from found[edge.next_task]


def label(task: Task) -> Hashable:
    """What is looked for in both graphs: the kind of node, whatever device's kernel it is of; of a leaf its shape."""
    return ("leaf", task.inputs[0].shape) if task.is_leaf else _kind(task.name)


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    return _OF_A_DEVICE.sub("", short_name(name))


def _output(task: Task, edge: Edge) -> int:
    return -1 if _kind(task.name) in COMMUTATIVE else edge.output
