"""Arrays of numpy's that are followed: when each was born and freed, and by tracemalloc what was taken besides."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import ref

from ...inspector.tapes.hips_nodes import owner_of
from ...inspector.threads import Caller
from ...inspector.torch_internals.allocators import WAITS_S
from ..memory.timeline import Category
from ..prediction.tape_footprints import PYTHONS_BYTES, one_measurement

BIRTH, DEATH, CHANGE = range(3)


class ArrayRow(NamedTuple):
    """What happened to an array, and when."""

    kind: int
    number: int
    ns: int


class ArrayLog:
    """Numbers arrays by their memory, and notes their births and deaths until it is `over`.

    Attributes:
        rows: what happened, in order.
        nbytes, born_as: by number.
        over: nothing is noted any more.
    """

    def __init__(self) -> None:
        self.rows: list[ArrayRow] = []
        self.nbytes: list[int] = []
        self.born_as: list[Category] = []
        self.over = False
        self._numbers: dict[int, int] = {}  # by id of an array that is alive
        self._refs: list[ref[Any]] = []

    def number(self, value: Any, category: Category) -> int:
        """The number of an array's memory, which is followed from now on; -1: it is none of numpy's own."""
        owner = owner_of(value)
        if owner is None or not owner.nbytes:
            return -1
        key = id(owner)
        if key not in self._numbers:
            number = self._numbers[key] = self.new(owner.nbytes, category)
            self.note(BIRTH, number)
            self._refs.append(ref(owner, partial(self._died, key)))
        return self._numbers[key]

    def new(self, nbytes: int, category: Category) -> int:
        """The number of something that is no array."""
        self.nbytes.append(nbytes)
        self.born_as.append(category)
        return len(self.nbytes) - 1

    def note(self, kind: int, number: int) -> None:
        self.rows.append(ArrayRow(kind, number, perf_counter_ns()))

    def with_workspace(self, rows: Sequence[ArrayRow], risen_bytes: int, began_ns: int) -> Sequence[ArrayRow]:
        """The rows of one turn, and where its arrays are at their highest what it took besides.

        `risen_bytes`: how far above its start tracemalloc saw it.
        """
        deltas = [0 if row.kind == CHANGE else self.nbytes[row.number] * (1 - 2 * row.kind) for row in rows]
        levels = list(accumulate(deltas, initial=0))
        highest = levels.index(max(levels))
        besides = risen_bytes - levels[highest]
        if besides <= PYTHONS_BYTES:
            return rows
        number, ns = self.new(besides, Category.WORKSPACE), rows[highest - 1].ns if highest else began_ns
        return [*rows[:highest], ArrayRow(BIRTH, number, ns), ArrayRow(DEATH, number, ns), *rows[highest:]]

    def _died(self, key: int, _: ref[Any]) -> None:
        number = self._numbers.pop(key)
        if not self.over:
            self.note(DEATH, number)


class Tracing:
    """tracemalloc at work, for one measurement at a time; where it is already, it goes on.

    Raises:
        RuntimeError: another measurement is under way.
    """

    def __enter__(self) -> Self:
        self._caller = Caller("a measured backward of a tape", stays=True)
        try:
            if (other := one_measurement.wait_for(self._caller, WAITS_S)) is not None:
                raise RuntimeError(
                    f"the memory of a tape is being measured already, in this thread or in another one, by {other.verb}"
                )
            self._ours = not tracemalloc.is_tracing()
            if self._ours:
                tracemalloc.start()
        except BaseException:
            self._caller.ended = True
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._ours:
                tracemalloc.stop()
        finally:
            self._caller.ended = True
