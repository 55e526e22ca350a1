"""Bytes by category along a timeline's events, and the tasks that read each gradient's storage."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from ...inspector.graph.graph import Graph
from ..execution.accumulation_rule import Accumulation


class CategoryWalk:
    """Goes through births, deaths and changes of category in their order, and sums up what is alive.

    Args:
        events, nbytes, born_as, before: as `Timeline` has them.
        changes: (index of the event before which it happened, place of its task, storage, category from then on).

    Attributes:
        nbytes_of: by category the bytes that are alive where the walk has come to; those of which none ever was may be
            missing.
    """

    def __init__(
        self,
        events: array[int],
        nbytes: array[int],
        born_as: array[int],
        before: int,
        changes: Iterable[tuple[int, int, int, int]],
    ) -> None:
        self.nbytes_of: dict[int, int] = {}
        self._events = events
        self._nbytes = nbytes
        self._category_of = list(born_as)
        self._changes = sorted(changes, key=itemgetter(0, 1))[::-1]  # the next one is the last
        self._event = 0
        for number in range(before):
            self._add(self._category_of[number], nbytes[number])

    def go_to(self, event: int, place: int) -> None:
        """Goes on to just before an event, while the task at `place` runs: others may change something there, too."""
        while True:
            while self._changes and self._is_due(event, place):
                self._change()
            if self._event == event:
                return
            number = self._events[self._event]
            if number >= 0:
                self._add(self._category_of[number], self._nbytes[number])
            else:
                self._add(self._category_of[~number], -self._nbytes[~number])
            self._event += 1

    def _is_due(self, event: int, place: int) -> bool:
        before, since, _, _ = self._changes[-1]
        return before < self._event or (before == self._event and (self._event < event or since <= place))

    def _change(self) -> None:
        _, _, number, category = self._changes.pop()
        self._add(self._category_of[number], -self._nbytes[number])
        self._add(category, self._nbytes[number])
        self._category_of[number] = category

    def _add(self, category: int, nbytes: int) -> None:
        self.nbytes_of[category] = self.nbytes_of.get(category, 0) + nbytes


@dataclass(frozen=True, eq=False, repr=False)
class Consumers:
    """Who takes the storages of a timeline. What its attributes mean is told there, see `Timeline`."""

    graph: Graph
    order: Sequence[int]
    accumulation: Accumulation
    inputs: array[int]
    listed: Sequence[tuple[int, int, int, int]]

    @cached_property
    def places(self) -> dict[int, int]:
        """By task its place in the order."""
        return {task: place for place, task in enumerate(self.order)}

    @cached_property
    def lists(self) -> dict[int, list[tuple[int, str]]]:
        """By storage the tasks in whose lists it is, and of which input."""
        found: dict[int, list[tuple[int, str]]] = {}
        for _, number, task, given in self.listed:
            if (task, str(given)) not in found.setdefault(number, []):
                found[number].append((task, str(given)))
        return found

    @cached_property
    def buffers(self) -> dict[int, list[int]]:
        """By storage the places of the tasks in whose input buffers it was when they ran."""
        found: dict[int, list[int]] = {}
        index = 0
        tasks = self.graph.tasks
        if not self.inputs:
            return found
        for place, task_id in enumerate(self.order):
            for _ in tasks[task_id].inputs:
                number = self.inputs[index]
                index += 1
                if number >= 0 and place not in found.setdefault(number, []):
                    found[number].append(place)
        return found

    def waited(self, number: int, born: int) -> list[int]:
        """The places of the tasks for which the storage, born at that place, had waited; the sum of a list had not."""
        places = self.buffers.get(number, [])
        if not self.accumulation.lists or not places:
            return places
        return [place for place in places if place != born]

    def of(self, number: int, born: int) -> list[int]:
        """The tasks that have consumed the storage and go on keeping it, in order; none where that is let go."""
        if not self.accumulation.keeps:
            return []
        tasks = self.graph.tasks
        waited = [self.order[place] for place in self.waited(number, born)]
        lists = [task for task, _ in self.lists.get(number, ())]
        found = [task for task in dict.fromkeys([*waited, *lists]) if not tasks[task].is_leaf]
        return sorted(found, key=self.places.__getitem__)
