"""Lifetimes of storages: allocations and frees in order, the categories of storages, and the resulting levels."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Generic, Literal, TypeVar

Kind = Literal[
    "parameters",
    "buffers",
    "batch",
    "optimizer state",
    "gradients",
    "activations",
    "temporaries",
    "earlier steps",
    "other tensors",
]
"""The kinds of memory in a training loop; a backward has finer ones, see `Category`.

Activations are alive when the backward starts and were not before the forward. In a recorded step, the batch is memory
allocated between forwards and alive when one starts. Temporaries are all other memory, including workspaces of
kernels."""

PARAMETERS: Kind = "parameters"
BUFFERS: Kind = "buffers"
BATCH: Kind = "batch"
STATE: Kind = "optimizer state"
GRADIENTS: Kind = "gradients"
ACTIVATIONS: Kind = "activations"
TEMPORARIES: Kind = "temporaries"
EARLIER: Kind = "earlier steps"
OTHERS: Kind = "other tensors"
OF_A_STEP: tuple[Kind, ...] = PARAMETERS, BUFFERS, BATCH, STATE, GRADIENTS, ACTIVATIONS, TEMPORARIES


class Category(IntEnum):
    """The use of a storage at a moment.

    Attributes:
        SAVED: a node saved it for its backward; for the second derivative, a gradient.
        BUFFER: a gradient in an input buffer, waiting for its task.
        GRADIENT: the .grad of a leaf.
        FORWARD: a value of the forward that no node saved and user code holds: the loss, an output.
        HELD: a gradient that is neither the .grad of a leaf nor waiting: a hook or retain_grad() holds it.
        WORKSPACE: allocated and freed within one kernel, formula or operation.
        UNKNOWN: not attributed.
        LISTED: a gradient that waits to be summed with others when the task runs (`accumulate="list"`).
        CONSUMED: a gradient whose task has run, and that is never freed (`release="never"`).
        PARAMETER: a parameter or buffer of the model; only in a timeline of a whole step.
        STATE: optimizer state; only in a timeline of a whole step.
    """

    SAVED = 0
    BUFFER = 1
    GRADIENT = 2
    FORWARD = 3
    HELD = 4
    WORKSPACE = 5
    UNKNOWN = 6
    LISTED = 7
    CONSUMED = 8
    PARAMETER = 9
    STATE = 10

    @property
    def title(self) -> str:
        """The category in words: `input buffer`."""
        return _TITLES[self]

    @property
    def plural(self) -> str:
        """The category of several storages: `input buffers`."""
        return _PLURALS.get(self, f"{self.title}s")

    def __str__(self) -> str:
        return self.title


_TITLES = {
    Category.SAVED: "saved activation",
    Category.BUFFER: "input buffer",
    Category.GRADIENT: "parameter gradient",
    Category.FORWARD: "forward value",
    Category.HELD: "held gradient",
    Category.WORKSPACE: "workspace",
    Category.UNKNOWN: "not attributed",
    Category.LISTED: "gradient in a list",
    Category.CONSUMED: "consumed buffer",
    Category.PARAMETER: "parameter",
    Category.STATE: "optimizer state",
}
_PLURALS = {
    Category.UNKNOWN: "not attributed",
    Category.STATE: "optimizer state",
    Category.WORKSPACE: "workspace",
    Category.LISTED: "gradients in lists",
}


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


K = TypeVar("K")


class CategoryWalk(Generic[K]):
    """A walk over allocations, frees and changes of category in order, which sums the bytes alive in each category.

    Args:
        events, nbytes, born_as, before: as in `Lifetimes`; the categories in `born_as` may be any hashable values.
        changes: (index of the event before which it happened, place of its task, storage, category from then on).

    Attributes:
        nbytes_of: the bytes of each category alive at the current event; categories that never had any may be missing.
    """

    def __init__(
        self,
        events: Sequence[int],
        nbytes: Sequence[int],
        born_as: Iterable[K],
        before: int,
        changes: Iterable[tuple[int, int, int, K]] = (),
    ) -> None:
        self.nbytes_of: dict[K, int] = {}
        self._events = events
        self._nbytes = nbytes
        self._category_of = list(born_as)
        self._changes = sorted(changes, key=itemgetter(0, 1))[::-1]  # the next change is at the end
        self._event = 0
        for number in range(before):
            self._add(self._category_of[number], nbytes[number])

    def go_to(self, event: int, place: int) -> None:
        """Advance to just before an event, with the changes up to the task at `place`; other tasks may change the same
        event."""
        while True:
            while self._changes:
                before, since, number, category = self._changes[-1]
                if before > self._event or (before == self._event == event and since > place):
                    break
                self._changes.pop()
                self._add(self._category_of[number], -self._nbytes[number])
                self._add(category, self._nbytes[number])
                self._category_of[number] = category
            if self._event == event:
                return
            number = self._events[self._event]
            if number >= 0:
                self._add(self._category_of[number], self._nbytes[number])
            else:
                self._add(self._category_of[~number], -self._nbytes[~number])
            self._event += 1

    def _add(self, category: K, nbytes: int) -> None:
        self.nbytes_of[category] = self.nbytes_of.get(category, 0) + nbytes


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
