"""Bytes by category, along the events of a timeline."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import itemgetter


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
