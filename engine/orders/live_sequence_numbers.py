"""Sequence numbers for tasks whose place in the order is not known before they get ready."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

from ...inspector.torch_internals.sequence_numbers import falling_numbers
from ..queue.policy import Key


class LiveNumbers:
    """The ready tasks by key, each with a number such that the engine pops the one with the least key first.

    A new key gets a number between those of its neighbours. Where there is no room left, all waiting tasks are numbered
    anew: their relative order stays, so that the engine's heap remains one.

    Args:
        number: gives a task its sequence number.
    """

    def __init__(self, number: Callable[[int, int], None]) -> None:
        self._number = number
        self._keys: list[Key] = []  # ascending, all different
        self._tasks: list[int] = []  # of each key
        self._numbers: list[int] = []  # falling

    def add(self, task_id: int, key: Key) -> None:
        """The task got ready. Must be called before it is put into the engine's queue."""
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._tasks.insert(place, task_id)
        neighbours: Mapping[int, int] = {0: self._numbers[place - 1]} if place else {}
        if place < len(self._numbers):
            neighbours = {**neighbours, len(neighbours) + 1: self._numbers[place]}
        found = falling_numbers(1 + len(neighbours), neighbours)
        if found is None:
            self.number_all()
        else:
            number = found[1 if place else 0]
            self._numbers.insert(place, number)
            self._number(task_id, number)

    def remove(self, task_id: int) -> None:
        """The engine took the task: as a rule the first."""
        place = self._tasks.index(task_id)
        del self._keys[place], self._tasks[place], self._numbers[place]

    def first(self) -> int | None:
        """The ready task that runs next if no other comes; None where none is ready."""
        return next(iter(self._tasks[:1]), None)

    def order(self) -> list[int]:
        """The ready tasks in the order in which they run if no other comes."""
        return list(self._tasks)

    def number_all(self) -> None:
        """Numbers all waiting tasks anew, evenly."""
        numbers = falling_numbers(len(self._tasks), {})
        assert numbers is not None, "there are more numbers than tasks"
        self._numbers = numbers
        for task_id, number in zip(self._tasks, numbers, strict=True):
            self._number(task_id, number)
