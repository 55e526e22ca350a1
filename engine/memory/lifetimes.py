"""What is alive when: births and deaths of storages in order, what each is for, and the levels that makes."""

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
"""What a training loop holds bytes for, from step to step; a backward knows more, see `Category`.

Activations are there when the backward starts, and not before the forward; of a step that is recorded, the batch is
what is made between forwards and there as one starts; temporaries are what is none of the others, what kernels take for
themselves among them."""

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
    """What a storage is for at a moment.

    Attributes:
        SAVED: a node keeps it for its backward; for the second derivative, a gradient.
        BUFFER: a gradient on its way to the next task.
        GRADIENT: the .grad of a leaf.
        FORWARD: no node keeps it, the user's code does: the loss, an output.
        HELD: neither .grad of a leaf nor on its way: a hook or retain_grad() holds it.
        WORKSPACE: born and freed inside one kernel, formula or operation.
        UNKNOWN: not attributed.
        LISTED: a gradient that waits to be summed with others when the task runs (`accumulate="list"`).
        CONSUMED: its task has run, and it is never let go (`release="never"`).
        PARAMETER: of the model, or a buffer of it; where a whole step is shown.
        STATE: what an optimizer keeps from step to step; where a whole step is shown.
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
        """How people read it: `input buffer`."""
        return _TITLES[self]

    @property
    def plural(self) -> str:
        """Of several storages: `input buffers`."""
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


K = TypeVar("K")


class CategoryWalk(Generic[K]):
    """Goes through births, deaths and changes of category in their order, and sums up what is alive.

    Args:
        events, nbytes, born_as, before: as `Lifetimes` has them; `born_as` may be of anything that tells them apart.
        changes: (index of the event before which it happened, place of its task, storage, category from then on).

    Attributes:
        nbytes_of: by category the bytes that are alive where the walk has come to; those of which none ever was may be
            missing.
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

    def _add(self, category: K, nbytes: int) -> None:
        self.nbytes_of[category] = self.nbytes_of.get(category, 0) + nbytes


class Lifetimes:
    """The storages of one device over a while: births, deaths and sizes. Storages are numbered in order of birth; those
    alive before the first event come first. A level is the sum of the bytes of those that are alive.

    Attributes:
        device: whose memory it is, "cpu" or "cuda:0".
        nbytes: by storage.
        events: one number each: `n` for the birth of storage n, `~n` for its death.
        before: how many storages are alive before the first event.
        event_ns: when each event happened. Empty: not recorded.
    """

    device: str
    nbytes: array[int]
    events: array[int]
    before: int
    event_ns: array[int]

    def __len__(self) -> int:
        """How many storages there are."""
        return len(self.nbytes)

    @cached_property
    def levels(self) -> array[int]:
        """The level after each event, bytes; first of all the one before any. So `levels[i]` is before event i."""
        return array("q", accumulate(self.deltas, initial=sum(self.nbytes[: self.before])))

    @property
    def deltas(self) -> Iterator[int]:
        """The bytes of each event: negative where a storage is freed."""
        nbytes = list(self.nbytes)
        signed = [*nbytes, *(-each for each in reversed(nbytes))]  # so that place ~n, from the end, is storage n's
        return map(signed.__getitem__, self.events)

    @property
    def peak_event(self) -> int:
        """The first index in `levels` at which memory is at its highest."""
        return self.levels.index(max(self.levels))

    @property
    def peak_bytes(self) -> int:
        """The highest level."""
        return self.levels[self.peak_event]

    @cached_property
    def births(self) -> array[int]:
        """By storage the index of the event of its birth; -1: it was there before all."""
        return array("q", [-1] * self.before + [event for event, number in enumerate(self.events) if number >= 0])

    @cached_property
    def deaths(self) -> dict[int, int]:
        """By storage the index of the event of its death, for those which died."""
        return {~number: event for event, number in enumerate(self.events) if number < 0}

    def alive(self, event: int | None = None) -> list[int]:
        """The storages that were alive before this event; by default at the peak."""
        if event is None:
            event = self.peak_event
        known = range(self.before)
        born = (number for number in self.events[:event] if number >= 0)
        dead = {~number for number in self.events[:event] if number < 0}
        return [number for numbers in (known, born) for number in numbers if number not in dead]
