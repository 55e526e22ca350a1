"""Levels of a timeline by category, over the forward and at the peak, and gradients that wait in lists."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from operator import itemgetter

from ...inspector.graph.graph import Graph
from .categories import Category, CategoryWalk
from .timeline import Timeline


def forward_category_levels(timeline: Timeline) -> dict[Category, array[int]]:
    """Return the bytes of each category before each event of the forward and at its end; empty if not recorded.

    They sum to the first part of `Timeline.levels`. Categories that never have bytes there are left out.
    """
    count = timeline.starts[0]
    if timeline.before or not count:
        return {}
    return _levels(timeline, 0, count, -1)


def forward_peak_event(timeline: Timeline) -> int | None:
    """Return the first index in `Timeline.levels` at which the forward is at its highest level (in a step, everything
    before the backward); None if it was not recorded."""
    if timeline.before and not timeline.is_of_step:
        return None
    levels = timeline.levels[: timeline.starts[0] + 1]
    return levels.index(max(levels))


def later_category_levels(timeline: Timeline) -> dict[Category, array[int]]:
    """Return the bytes of each category after the last task: the optimizer's part, if a whole step was recorded."""
    return _levels(timeline, timeline.starts[-1], len(timeline.events), len(timeline.order))


def category_levels_at_peak(timeline: Timeline) -> dict[Category, int]:
    """Return the bytes of each category at the peak, whether it is in a task, before the first one or after the last.

    They sum to `Timeline.peak_bytes`. Categories that have bytes in the backward but not at the peak are 0.
    """
    event = timeline.peak_event
    peak = _levels(timeline, event, event, timeline.peak_place)
    return dict.fromkeys(timeline.category_levels, 0) | {category: column[0] for category, column in peak.items()}


def _levels(timeline: Timeline, first: int, last: int, place: int) -> dict[Category, array[int]]:
    """Return the bytes of each category before each of these events and before the following one, at this place."""
    changes = [
        (event, place, number, category)
        for number, changed in timeline.changes_of.items()
        for event, place, category in changed
    ]
    walk = CategoryWalk(timeline.events, timeline.nbytes, timeline.born_as, timeline.before, changes)
    columns = {category: array("q") for category in Category}
    for event in range(first, last + 1):
        walk.go_to(event, place)
        for category, column in columns.items():
            column.append(walk.nbytes_of.get(category, 0))
    return {category: column for category, column in columns.items() if any(column)}


def summed_inputs(graph: Graph, ran: Collection[int]) -> set[tuple[int, int]]:
    """Return each (task, input) at which several gradients are summed if these tasks run."""
    found = Counter((edge.next_task, edge.input) for edge in graph.edges if edge.task in ran and edge.next_task in ran)
    found.update((root.task, root.input) for root in graph.roots)
    return {key for key, count in found.items() if count > 1}


def with_names(timeline: Timeline) -> Timeline:
    """Return the timeline with added changes of category for storages that only wait in lists or only were consumed.

    A storage that waits for a task alone stays an input buffer whatever else holds it, and a .grad stays a .grad.
    Storages from before the backward, and those held by hooks, keep their category.
    """
    changes = list(timeline.changes)
    lists: dict[int, list[tuple[int, int]]] = {}
    for place, number, task, _ in timeline.listed:
        lists.setdefault(number, []).append((place, timeline.places[task]))
    for number, event in enumerate(timeline.births):
        consumed = [timeline.places[task] for task in timeline.consumers(number)]
        if event < timeline.starts[0] or number in timeline.held or not (consumed or number in lists):
            continue
        alone = timeline._consumers.waited(number, timeline.place_of(timeline.births[number]))
        listed = lists.get(number, [])
        until = timeline.places.get(timeline.grads.get(number, -1), len(timeline.order))
        category = Category.BUFFER
        for place in sorted({*alone, *consumed, *(place for interval in listed for place in interval)}):
            if place >= until:
                break
            now = category
            if any(place < end for end in alone):
                now = Category.BUFFER
            elif any(start <= place < end for start, end in listed):
                now = Category.LISTED
            elif any(end <= place for end in consumed):
                now = Category.CONSUMED
            if now is not category:
                category = now
                changes.append((timeline.starts[place + 1], number, now))
    return replace(timeline, changes=sorted(changes, key=itemgetter(0)))
