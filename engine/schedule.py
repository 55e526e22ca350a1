"""The order in which a policy would run a graph, from its topology alone: nothing is executed."""

from __future__ import annotations

from collections.abc import Sequence

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


def schedule(graph: Graph, policy: AnyPolicy) -> list[int]:
    """The task ids in the order in which `policy` runs them.

    Raises:
        PolicyError: a user's policy returned something that is not ready.
    """
    order: list[int] = []
    queue = ready_queue(graph, find_policy(policy), order)
    missing = dependencies(graph)
    for root in graph.roots:
        missing[root.task] -= 1
        if not missing[root.task]:
            queue.push(root.task)
    out_edges = graph.out_edges
    while queue:
        task_id = queue.choose()
        queue.remove(task_id)
        order.append(task_id)
        for edge in out_edges[task_id]:
            missing[edge.next_task] -= 1
            if not missing[edge.next_task]:
                queue.push(edge.next_task)
    return order


def queue_lengths(graph: Graph, order: Sequence[int]) -> list[int]:
    """How many tasks were ready when each task of `order` was picked, that one included.

    `order` may leave tasks out, as a backward with `inputs=` does; whatever else it runs must be in a legal order.
    """
    missing = dependencies(graph)
    ready = 0
    for root in graph.roots:
        missing[root.task] -= 1
        ready += not missing[root.task]
    lengths = []
    for task_id in order:
        lengths.append(ready)
        ready -= 1
        for edge in graph.out_edges[task_id]:
            missing[edge.next_task] -= 1
            ready += not missing[edge.next_task]
    return lengths
