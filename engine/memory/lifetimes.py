"""Lifetimes of storages: allocations and frees in order, and the resulting levels."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate


def mean_level(levels: Sequence[int], ns: Sequence[int], began_ns: int, ended_ns: int) -> float:
    """Return the mean of a level over a period, in which each value counts for as long as it lasted.

    Args:
        levels: the level before the first event, and after each event.
        ns: the time of each event.
        began_ns, ended_ns: the period. Events outside it count as if they happened at its ends.
    """
    total, last = 0, began_ns
    for level, event_ns in zip(levels, ns, strict=False):  # the level before each event
        until = min(max(event_ns, last), ended_ns)
        total += level * (until - last)
        last = until
    total += levels[-1] * (ended_ns - last)
    return total / (ended_ns - began_ns) if ended_ns > began_ns else float(levels[-1])


class Lifetimes:
    """The storages of one device over a period: allocations, frees and sizes. Storages are numbered in the order in
    which they are allocated; those alive before the first event come first. A level is the total size of the storages
    alive.

    Attributes:
        device: the device, "cpu" or "cuda:0".
        nbytes: the size of each storage.
        events: one number each: `n` for the allocation of storage n, `~n` for its free.
        before: the number of storages alive before the first event.
        event_ns: the time of each event. Empty if not recorded.
    """

    device: str
    nbytes: array[int]
    events: array[int]
    before: int
    event_ns: array[int]

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self.nbytes)

    @cached_property
    def levels(self) -> array[int]:
        """The level in bytes before the first event, and after each event: `levels[i]` is the level before event i."""
        return array("q", accumulate(self.deltas, initial=sum(self.nbytes[: self.before])))

    @property
    def deltas(self) -> Iterator[int]:
        """Yield the bytes of each event, negative if a storage is freed."""
        nbytes = list(self.nbytes)
        signed = [*nbytes, *(-each for each in reversed(nbytes))]  # index ~n, from the end, is storage n's
        return map(signed.__getitem__, self.events)

    @property
    def peak_event(self) -> int:
        """The first index of the highest level in `levels`."""
        return self.levels.index(max(self.levels))

    @property
    def peak_bytes(self) -> int:
        """The highest level."""
        return self.levels[self.peak_event]

    @cached_property
    def births(self) -> array[int]:
        """The index of the event that allocates each storage; -1 if it is alive before the first event."""
        return array("q", [-1] * self.before + [event for event, number in enumerate(self.events) if number >= 0])

    @cached_property
    def deaths(self) -> dict[int, int]:
        """The index of the event that frees each storage, for those that are freed."""
        return {~number: event for event, number in enumerate(self.events) if number < 0}

    def alive(self, event: int | None = None) -> list[int]:
        """Return the storages alive before this event; by default at the peak."""
        if event is None:
            event = self.peak_event
        known = range(self.before)
        born = (number for number in self.events[:event] if number >= 0)
        dead = {~number for number in self.events[:event] if number < 0}
        return [number for numbers in (known, born) for number in numbers if number not in dead]
