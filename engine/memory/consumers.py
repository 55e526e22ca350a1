"""For which tasks each storage waited, in their input buffers or in lists, and which of them go on keeping it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...inspector.graph.graph import Graph
from .accumulation import Accumulation


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
