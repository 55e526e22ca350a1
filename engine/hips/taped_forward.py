"""The memory of a forward that is taped: which arrays its nodes made when, and when they were freed."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from time import perf_counter_ns
from typing import NamedTuple

from ...inspector.tapes.hips_nodes import RecordedNode
from ...inspector.tapes.hips_tape import HipsTape
from ..memory.timeline import Category, Maker
from ..prediction.tape_footprints import maker_of
from .array_log import ArrayLog, ArrayRow


class _Turn(NamedTuple):
    """The time in which one node is made: its first row, and at its start the traced bytes and the clock."""

    first: int
    traced_bytes: int
    began_ns: int


class TapedForward:
    """Follows the arrays of one forward from the moment a node made them until they are freed, its backward included.

    Known limitations: those of `ArrayWatch`. Arrays of the user's that no node made are not followed: what they take
    beyond those that are is workspace of the node after.

    Attributes:
        log: the arrays.
        makers: by number what made them.
    """

    def __init__(self, root: RecordedNode) -> None:
        self.log = ArrayLog()
        self.makers: dict[int, Maker] = {}
        self._root = root
        self._turns: list[_Turn] = []
        self._risen: list[int] = []
        self._made_by: list[Maker] = []
        self._given = {id(owner) for each in root.made if (owner := each()) is not None}
        self._begin_turn()

    def made(self, node: RecordedNode) -> None:
        """A primitive was called, and this is its node."""
        self._risen.append(tracemalloc.get_traced_memory()[1] - self._turns[-1].traced_bytes)
        self._made_by.append(maker := maker_of(node))
        for each in node.made:
            owner = each()
            if owner is not None and owner.nbytes and id(owner) not in self._given:
                self.makers.setdefault(self.log.number(owner, Category.FORWARD), maker)
            del owner
        self._begin_turn()

    def is_of(self, tape: HipsTape) -> bool:
        """Whether this tape is the one that was followed."""
        return tape.nodes[-1] is self._root

    def rows(self, until: int) -> list[ArrayRow]:
        """What happened, up to this row of the log, with the workspace of each node."""
        bounds = [*(turn.first for turn in self._turns), until]
        rows: list[ArrayRow] = []
        for number, (first, end) in enumerate(pairwise(bounds)):
            of_turn = self.log.rows[first:end]
            if number == len(self._risen):  # after the last node
                rows += of_turn
                continue
            for row in self.log.with_workspace(of_turn, self._risen[number], self._turns[number].began_ns):
                self.makers.setdefault(row.number, self._made_by[number])
                rows.append(row)
        return rows

    def _begin_turn(self) -> None:
        traced, _ = tracemalloc.get_traced_memory()
        self._turns.append(_Turn(len(self.log.rows), traced, perf_counter_ns()))
        tracemalloc.reset_peak()
