"""Longest ways through a graph, in links and in time: the rank of each item, and what lies on a circle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

Time = TypeVar("Time", int, float)


def ranks_of(count: int, links: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The longest way from a source to each of `count` items, and the items on no circle, sources first.

    Where links form a circle, the items on it and below it are missing from the second list.
    """
    successors: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in links:
        successors[source].append(target)
        missing[target] += 1
    return ranks_from(successors, missing)


def ranks_from(successors: Sequence[Sequence[int]], missing: list[int]) -> tuple[list[int], list[int]]:
    """The same of lists that are there already. Of `missing`, the links that lead to each item, nothing is left."""
    ranks = [0] * len(successors)
    order = [item for item in range(len(missing)) if not missing[item]]
    for item in order:
        next_rank = ranks[item] + 1
        for successor in successors[item]:
            if ranks[successor] < next_rank:
                ranks[successor] = next_rank
            missing[successor] -= 1
            if not missing[successor]:
                order.append(successor)
    return ranks, order


def longest_ways(order: Iterable[int], before: Sequence[Iterable[int]], times: Sequence[Time]) -> list[Time]:
    """By item the longest way to it: how much time has to pass before it can start.

    With the order reversed, and `before` what comes after each item, it is what has to pass after it has ended.

    Args:
        order: each item after all that are before it.
        before: by item those which it waits for.
        times: how long each takes.
    """
    found = [type(time)() for time in times]
    for item in order:
        for other in before[item]:
            end = found[other] + times[other]
            if end > found[item]:
                found[item] = end
    return found
