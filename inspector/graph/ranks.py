"""Longest paths: the rank of each item, and what lies on a circle."""

from __future__ import annotations

from collections.abc import Iterable


def ranks_of(count: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The longest way from a source to each of `count` items, and the items on no circle, sources first.

    Where links form a circle, the items on it and below it are missing from the second list.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in links:
        successors[source].append(target)
        missing[target] += 1
    ranks = [0] * count
    order = [item for item in range(count) if not missing[item]]
    for item in order:
        next_rank = ranks[item] + 1
        for successor in successors[item]:
            if ranks[successor] < next_rank:
                ranks[successor] = next_rank
            missing[successor] -= 1
            if not missing[successor]:
                order.append(successor)
    return ranks, order
