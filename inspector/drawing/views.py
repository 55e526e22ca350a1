"""Chains of views: what moves no number, and says little of a backward, is one quiet row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..graph.graph import Graph
from ..graph.kinds import short_name
from ..graph.repeats import RepeatedPart, first_task

VIEWS = frozenset({"View", "UnsafeView", "Clone", "Transpose", "Expand", "Permute"})


def fold_views(
    graph: Graph, children: Sequence[RepeatedPart | int], links: Iterable[tuple[int, int]]
) -> list[RepeatedPart | int]:
    """The children with each chain of two and more views as one part. `links` are (upper, lower) places of children."""
    is_view = [isinstance(child, int) and short_name(graph.tasks[child].name) in VIEWS for child in children]
    if not any(is_view):
        return list(children)
    after: dict[int, int | None] = {}
    before: dict[int, int | None] = {}
    for upper, lower in links:
        after[upper] = lower if after.get(upper, lower) == lower else None
        before[lower] = upper if before.get(lower, upper) == upper else None

    def next_view(place: int | None) -> int | None:
        following = None if place is None or not is_view[place] else after.get(place)
        return following if following is not None and is_view[following] and before[following] == place else None

    gone: set[int] = set()
    folded: list[RepeatedPart | int] = []
    for place in range(len(children)):
        following = next_view(place)
        if following is None or next_view(before.get(place)) == place:
            continue  # not the first of a chain
        chain = [place]
        while following is not None:
            chain.append(following)
            following = next_view(following)
        if len(chain) == len(children):
            return list(children)  # the box itself is the chain
        gone.update(chain)
        part = RepeatedPart("", "", 0)
        part.is_views = True
        part.tasks = sorted(child for each in chain if isinstance(child := children[each], int))
        part.children = list(part.tasks)
        folded.append(part)
    kept = [child for place, child in enumerate(children) if place not in gone]
    return sorted([*kept, *folded], key=first_task)
