"""How many pairs of tasks a graph leaves in either order, and how many of these some orders have shown both ways."""

from __future__ import annotations

from collections.abc import Sequence

from ...inspector.graph.graph import Graph

_MOST = 10_000  # tasks: a bit for each pair, 12.5 MB for each set of pairs


def count_pairs(graph: Graph, orders: Sequence[Sequence[int]]) -> tuple[int | None, int | None]:
    """The pairs between which no path leads, and those among them that come one way in one order and the other way in
    another. None where the graph has too many tasks."""
    tasks = sorted(orders[0])
    if len(tasks) > _MOST:
        return None, None
    behind = dict.fromkeys(tasks, 0)  # bits of all that has to come later
    for task in reversed(orders[0]):
        for edge in graph.out_edges[task]:
            if edge.next_task in behind:
                behind[task] |= behind[edge.next_task] | 1 << edge.next_task
    later = dict.fromkeys(tasks, 0)  # what came later in any of the orders
    for order in orders:
        seen = 0
        for task in reversed(order):
            later[task] |= seen
            seen |= 1 << task
    everything = sum(1 << task for task in tasks)
    ordered = sum(each.bit_count() for each in behind.values())
    pairs = len(tasks) * (len(tasks) - 1) // 2 - ordered
    # each pair of any order is there once, or twice where orders differ
    both = sum((later[task] & everything).bit_count() for task in tasks) - len(tasks) * (len(tasks) - 1) // 2
    return pairs, both
