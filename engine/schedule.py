"""The order in which a policy would run a graph, from its topology alone: nothing is executed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..inspector.graph import Graph
from .policies import AnyPolicy, find_policy
from .ready_queue import ready_queue


def dependencies(graph: Graph) -> list[int]:
    """How many gradients each task waits for: one per edge and one per root (engine.cpp, compute_dependencies)."""
    counts = [0] * len(graph.tasks)
    for edge in graph.edges:
        counts[edge.next_task] += 1
    for root in graph.roots:
        counts[root.task] += 1
    return counts


class _Pending:
    """The tasks that are not ready yet, and which get ready as others run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._missing = dependencies(graph)

    def start(self) -> list[int]:
        """The tasks that are ready at once."""
        return self._arrive(root.task for root in self._graph.roots)

    def run(self, task_id: int) -> list[int]:
        """The tasks that get ready when this one runs, by its output number."""
        return self._arrive(edge.next_task for edge in self._graph.out_edges[task_id])

    def _arrive(self, task_ids: Iterable[int]) -> list[int]:
        missing = self._missing
        ready = []
        for task_id in task_ids:
            missing[task_id] -= 1
            if not missing[task_id]:
                ready.append(task_id)
        return ready


def schedule(graph: Graph, policy: AnyPolicy) -> list[int]:
    """The task ids in the order in which `policy` runs them.

    Raises:
        PolicyError: a user's policy returned something that is not ready.
    """
    order: list[int] = []
    queue = ready_queue(graph, find_policy(policy), order)
    pending = _Pending(graph)
    for task_id in pending.start():
        queue.push(task_id)
    while queue:
        task_id = queue.choose()
        queue.remove(task_id)
        order.append(task_id)
        for next_task in pending.run(task_id):
            queue.push(next_task)
    return order


def queue_lengths(graph: Graph, order: Sequence[int]) -> list[int]:
    """How many tasks were ready when each task of `order` was picked, that one included.

    `order` may leave tasks out, as a backward with `inputs=` does; whatever else it runs must be in a legal order.
    """
    pending = _Pending(graph)
    ready = len(pending.start())
    lengths = []
    for task_id in order:
        lengths.append(ready)
        ready += len(pending.run(task_id)) - 1
    return lengths
