"""The branches of a live session: the ways in which it went, as its deck's page has them."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.sessions.branches import Branch
from ....engine.sessions.native_session import NativeSession
from ....engine.sessions.stepper import Stepper
from ..document import Json
from .foresight import Foresight

_Key = tuple[int, tuple[int, ...]]


class LiveBranches:
    """What a session has gone back from, and the way on which it stands.

    A branch that was left is a schedule of its own: what ran on it, and what its policy would have run next, with the
    memory which that takes.

    Attributes:
        gradient_bytes: of the gradients that are kept to compare branches, as of the last news.
    """

    def __init__(self, session: Stepper | NativeSession, foresight: Foresight) -> None:
        self._session = session
        self._foresight = foresight
        self.gradient_bytes = 0
        self._told: list[Json] = []
        self._told_left: list[_Key] = []
        self._simulated: dict[_Key, Json] = {}

    @property
    def all(self) -> tuple[Branch, ...]:
        session = self._session
        return session.branches if isinstance(session, Stepper) and session.over is None else ()

    @property
    def current(self) -> Branch | None:
        return next((branch for branch in self.all if branch.is_current), None)

    def news(self) -> tuple[list[Json] | None, bool]:
        """What the page is told of each, none where there is but one; None where that has been told.

        And whether `schedules` would have something else than the last time.
        """
        if self._session.over is not None:
            return None, False
        branches = self.all
        self.gradient_bytes = sum(branch.gradient_bytes for branch in branches)
        rows = [] if len(branches) < 2 else [_row(branch) for branch in branches]
        if rows == self._told:
            return None, False
        self._told = rows
        return rows, _keys(branches) != self._told_left

    @property
    def schedules(self) -> list[Json]:
        """Of each branch that was left what ran, and what would have."""
        left = self._left
        self._told_left = _keys(left)
        return [self._simulate(branch) for branch in left]

    def forget(self) -> None:
        """What was predicted is predicted anew."""
        self._simulated.clear()

    @property
    def _left(self) -> list[Branch]:
        return [branch for branch in self.all if not branch.is_current]

    def _simulate(self, branch: Branch) -> Json:
        key = branch.number, branch.order
        if key not in self._simulated:
            policy = branch.terms[-1][1]
            order = self._foresight.completed(policy, branch.order)
            content, _ = self._foresight.schedule(policy, order, sorted(branch.by_hand))
            self._simulated[key] = content | {"policy": branch.name}
        return self._simulated[key] | {"title": branch.describe()}


def _keys(branches: Sequence[Branch]) -> list[_Key]:
    """What tells branches that were left from others."""
    return [(branch.number, branch.order) for branch in branches if not branch.is_current]


def _row(branch: Branch) -> Json:
    return {
        "number": branch.number,
        "parent": branch.parent,
        "forked_at": branch.forked_at,
        "ran": len(branch.order),
        "policy": branch.policy,
        "edits": len(branch.edits),
        "current": branch.is_current,
        "text": branch.describe(),
    }
