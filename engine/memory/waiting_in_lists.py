"""Which gradients wait in lists, and which were consumed and are never let go: a timeline calls them so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from operator import itemgetter

from ...inspector.graph.graph import Graph
from .timeline import Category, Timeline


def summed_inputs(graph: Graph, ran: Collection[int]) -> set[tuple[int, int]]:
    """The (task, input) where several gradients meet, if these tasks run."""
    found = Counter((edge.next_task, edge.input) for edge in graph.edges if edge.task in ran and edge.next_task in ran)
    found.update((root.task, root.input) for root in graph.roots)
    return {key for key, count in found.items() if count > 1}


def with_names(timeline: Timeline) -> Timeline:
    """The timeline with changes of category where a storage only waits in lists, or only was consumed.

    One that waits for a task by itself is an input buffer whatever else holds it, and a .grad is a .grad. What was
    there before the backward keeps its category, and what a hook holds.
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
