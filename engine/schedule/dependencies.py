"""Dependencies between tasks: the gradients each waits for, and the tasks that become ready as others run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...inspector.graph.graph import Graph
from ...inspector.validation import expect


def dependencies(graph: Graph) -> list[int]:
    """Return the number of gradients each task waits for: one per edge and one per root (engine.cpp,
    compute_dependencies)."""
    counts = [0] * len(graph.tasks)
    for edge in graph.edges:
        counts[edge.next_task] += 1
    for root in graph.roots:
        counts[root.task] += 1
    return counts


class Pending:
    """The tasks that are not ready yet, and become ready as others run.

    Args:
        graph: the graph.
        needed: the tasks that run; None for all. It includes all tasks that lead to one of them.
    """

    def __init__(self, graph: Graph, needed: Collection[int] | None = None) -> None:
        self._roots = [root.task for root in graph.roots]
        self._nexts = [[edge.next_task for edge in edges] for edges in graph.out_edges]
        self._missing = dependencies(graph)
        if needed is not None:
            for task_id in range(len(graph)):
                if task_id not in needed:
                    self._missing[task_id] = 0  # it is decremented below 0, so it never becomes ready

    def start(self) -> list[int]:
        """Return the tasks that are ready at the start."""
        return self._arrive(self._roots)

    def run(self, task_id: int) -> list[int]:
        """Return the tasks that become ready when this one runs, by its output number."""
        return self._arrive(self._nexts[task_id])

    def _arrive(self, task_ids: list[int]) -> list[int]:
        missing = self._missing
        ready = []
        for task_id in task_ids:
            missing[task_id] -= 1
            if not missing[task_id]:
                ready.append(task_id)
        return ready


def queue_lengths(graph: Graph, order: Sequence[int]) -> list[int]:
    """Return the number of ready tasks when each task of `order` was chosen, including itself.

    `order` may skip tasks, as a backward with `inputs=` does; the others must be in a legal order.

    Raises:
        TypeError: If `graph` is not a graph, or an id in the order is not an integer.
        ValueError: If the graph does not have such a task.
    """
    expect(graph, Graph, "graph", "a graph, such as run.graph")
    expect(order, Sequence, "order", "the ids of the tasks as they ran, such as run.order")
    for kind in set(map(type, order)) - {int}:
        raise TypeError(f"order must contain the ids of the tasks as they ran, got a {kind.__name__}")
    for task_id in (min(order), max(order)) if order else ():
        graph.task(task_id)  # raises for an unknown task
    pending = Pending(graph, set(order))
    ready = len(pending.start())
    lengths = []
    for task_id in order:
        lengths.append(ready)
        ready += len(pending.run(task_id)) - 1
    return lengths
