"""What threads do side by side: one at a time uses something, and references are counted while no other one looks."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any, TypeVar
from weakref import ref

T = TypeVar("T")

_LOOKS_EACH_S = 0.001
_UNDISTURBED_S = 10.0  # how long a count waits for the looks of other threads, in all


class Caller:
    """Somebody who uses, or wants to. Only the call that uses may hold it, or the object that does so for it.

    Args:
        verb: what is called, in words.
        stays: whether it goes on after the function returns that makes this.
        is_brief: whether it ends by itself, soon: others may wait for it. It waits for others, too.
    """

    __slots__ = ("__weakref__", "_frame", "ended", "is_brief", "thread", "verb")

    def __init__(self, verb: str, *, stays: bool = False, is_brief: bool = False) -> None:
        self.verb = verb
        self.is_brief = is_brief
        self.ended = False
        self.thread = get_ident()
        self._frame = None if stays else id(sys._getframe(1))  # of no other one while this is alive

    @property
    def is_under_way(self) -> bool:
        """Whether the call goes on. Two interrupts in a row may keep it from saying that it has ended, and the error's
        traceback may hold its frame: of the calling thread the stack tells."""
        if self.ended or self._frame is None or self.thread != get_ident():
            return not self.ended
        frame: FrameType | None = sys._getframe()
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        return frame is not None


class _Link:
    """A caller that had the use, and the one that had it after it."""

    __slots__ = ("caller", "next")

    def __init__(self, caller: Callable[[], Caller | None]) -> None:
        self.caller = caller
        self.next: dict[None, _Link] = {}  # one at most: `setdefault` lets one of several callers in


class ExclusiveUse:
    """One caller at a time has it.

    It is not held by a lock: an interrupt (Ctrl-C) may come at any line, also at one that would give a lock back, and
    it would be held for ever. A caller has it until it says that it has ended, or is gone.
    """

    def __init__(self) -> None:
        self._last = _Link(_nobody)

    @property
    def holder(self) -> Caller | None:
        """The caller that has it."""
        link = self._last
        while link.next:
            link = link.next[None]
        caller = link.caller()
        return caller if caller is not None and caller.is_under_way else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread has it."""
        return (holder := self.holder) is not None and holder.thread != get_ident()

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

    def wait_for(self, caller: Caller, limit_s: float) -> Caller | None:
        """The same, after waiting so long for another thread's, where one of the two is brief."""
        until_s = time.monotonic() + limit_s
        while (other := self.take(caller)) is not None:
            here = other.thread == caller.thread
            if here or not (other.is_brief or caller.is_brief) or time.monotonic() >= until_s:
                return other
            time.sleep(_LOOKS_EACH_S)
        return None


def _nobody() -> None:
    return None


_looking: dict[object, int] = {}  # the looks that are under way, each with its thread
_looks_begun = 0  # two that begin at once may count as one


@contextmanager
def all_objects() -> Iterator[list[Any]]:
    """All objects that the collector tracks. It holds each of them, which `undisturbed` reckons with."""
    global _looks_begun
    look = object()
    objects: list[Any] = []
    try:
        _looking[look] = get_ident()
        _looks_begun += 1
        objects = gc.get_objects()
        yield objects
    finally:
        objects.clear()
        _looking.pop(look, None)


def undisturbed(count: Callable[[], T]) -> T:
    """What `count`, which counts references, gives while no other thread looks at all objects, and holds them."""
    until_s = time.monotonic() + _UNDISTURBED_S
    while True:
        while any(thread != get_ident() for thread in list(_looking.values())) and time.monotonic() < until_s:
            time.sleep(_LOOKS_EACH_S)
        begun = _looks_begun
        found = count()
        if begun == _looks_begun or time.monotonic() >= until_s:
            return found
