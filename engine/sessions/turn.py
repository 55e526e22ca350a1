"""Whose turn a session has: the one verb of it that is under way, of all threads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from weakref import ref


class Caller:
    """A call of a verb. Only the frame of that call may hold it.

    Args:
        verb: what is called, in words.
    """

    __slots__ = ("__weakref__", "_frame", "ended", "thread", "verb")

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.ended = False
        self.thread = get_ident()
        self._frame = id(sys._getframe(1))  # not used again for another one while this is alive

    @property
    def is_under_way(self) -> bool:
        """Whether the call goes on. Two interrupts in a row may keep it from saying that it has ended, and the error's
        traceback may hold its frame: of the calling thread the stack tells."""
        if self.ended or self.thread != get_ident():
            return not self.ended
        frame: FrameType | None = sys._getframe()
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        return frame is not None


class _Link:
    """A caller that had the turn, and the one that had it after it."""

    __slots__ = ("caller", "next")

    def __init__(self, caller: Callable[[], Caller | None]) -> None:
        self.caller = caller
        self.next: dict[None, _Link] = {}  # one at most: `setdefault` lets one of several callers in


class SessionTurn:
    """One caller at a time has it.

    It is not held by a lock: an interrupt (Ctrl-C) may come at any line, also at one that would give a lock back, and
    the session would be under way for ever. A caller has the turn until it says that it has ended, or is gone.

    Attributes:
        unfinished: the caller whose verb has begun to change the session, and did not end, neither as it should nor by
            an error of its own, as a list of one text; empty where there is none.
    """

    def __init__(self) -> None:
        self._last = _Link(_nobody)
        self.unfinished: list[str] = []

    @property
    def holder(self) -> Caller | None:
        """The caller that has the turn."""
        link = self._last
        while link.next:
            link = link.next[None]
        caller = link.caller()
        return caller if caller is not None and caller.is_under_way else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread has it."""
        return (holder := self.holder) is not None and holder.thread != get_ident()

    @property
    def interrupted(self) -> str | None:
        """The verb that an interrupt has ended half-way; None where none is."""
        unfinished = self.unfinished
        if not unfinished or self.holder is not None or self.unfinished is not unfinished:
            return None
        return f"interrupted in {unfinished[0]}"

    def take(self, caller: Caller) -> Caller | None:
        """Gives it to this caller, unless another one has it, which is then returned."""
        link, mine = self._last, _Link(ref(caller))
        while True:
            other = link.caller()
            if other is not None and other.is_under_way:
                return other
            found = link.next.setdefault(None, mine)
            if found is mine:
                self._last = mine
                return None
            link = found


def _nobody() -> None:
    return None
