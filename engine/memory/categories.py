"""Categories of memory: the kinds of a training loop, those of a backward, and the bytes alive in each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
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
