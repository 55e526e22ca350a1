"""Daemon threads that can be waited for, and exclusive use of a resource without locks."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from threading import Event, Thread, get_ident
from types import FrameType
from weakref import ref

LOOKS_EACH_S = 0.001


class Caller:
    """A call that takes an `ExclusiveUse`. Only that call may hold this object, or the object that acts for it.

    Args:
        verb: the name of the call, for messages.
        stays: whether the use continues after the function that creates this has returned.
        is_brief: whether the use ends soon by itself. Others wait for it, and it waits for others.

    Attributes:
        ended: whether the use is over; set by the caller.
        thread: the thread of the call.
    """

    __slots__ = ("__weakref__", "_frame", "ended", "is_brief", "thread", "verb")

    def __init__(self, verb: str, *, stays: bool = False, is_brief: bool = False) -> None:
        self.verb = verb
        self.is_brief = is_brief
        self.ended = False
        self.thread = get_ident()
        self._frame = None if stays else id(sys._getframe(1))  # unique while the function runs

    @property
    def is_under_way(self) -> bool:
        """Return whether the call is still running.

        Two interrupts in a row may keep it from setting `ended`, and the error's traceback may keep its frame alive. So
        in the calling thread the frame must be on the stack.
        """
        if self.ended or self._frame is None or self.thread != get_ident():
            return not self.ended
        frame: FrameType | None = sys._getframe()
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        return frame is not None


class DaemonThread(Thread):
    """A daemon thread that can be joined reliably, even after an interrupted wait.

    In Python 3.11 `Thread.join` and `Thread.is_alive` report a running thread as ended after Ctrl-C interrupted them.

    Attributes:
        begun, ended: events set when its work begins and ends.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.begun, self.ended = Event(), Event()

    def run(self) -> None:
        self.begun.set()
        _ended[:] = [each for each in _ended if _exists(each)]
        try:
            super().run()
        finally:
            _ended.append(self.native_id)
            self.ended.set()

    @property
    def is_at_work(self) -> bool:
        """Return whether its work has begun and not ended."""
        return self.begun.is_set() and not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of its work, and then until the interpreter and PyTorch have freed the thread's state."""
        if self.ended.wait(timeout):
            super().join(timeout)

    def join_in_any_case(self) -> None:
        """Join the thread regardless of interrupts, and raise the last interrupt afterwards."""
        try:
            self.join()
        except BaseException:
            self.join_in_any_case()
            raise


_ended: list[int | None] = []  # native ids of threads whose work has ended


@atexit.register
def _wait_for_native_ends() -> None:
    """Wait at the interpreter's exit until the threads are also gone for the operating system.

    `Thread.join` returns before the thread's C++ thread-locals are destroyed. Those of PyTorch hold Python objects
    (at::impl::ThreadLocalPythonObjects) and take the GIL for that; once the interpreter has been finalized this ends
    the process with SIGABRT: with torch 2.12.1 nearly always when a session is closed last.
    """
    until_s = time.monotonic() + 1.0
    while any(map(_exists, _ended)) and time.monotonic() < until_s:
        time.sleep(LOOKS_EACH_S)


def _exists(native_id: int | None) -> bool:
    return os.path.exists(f"/proc/self/task/{native_id}")  # Linux only; unknown elsewhere


class _Link:
    """A caller, and the link of the caller that acquired the use after it."""

    __slots__ = ("caller", "next")

    def __init__(self, caller: Callable[[], Caller | None]) -> None:
        self.caller = caller
        self.next: dict[
            None, _Link
        ] = {}  # at most one entry: dict.setdefault is atomic, so only one of several callers succeeds


class ExclusiveUse:
    """A resource that one caller at a time may use.

    It has no lock, because an interrupt (Ctrl-C) may come at any line: just before a lock is released, it would leave
    the lock held forever. A caller has the use until it sets `ended` or is garbage collected.
    """

    def __init__(self) -> None:
        self._last = _Link(lambda: None)

    @property
    def holder(self) -> Caller | None:
        """Return the caller that has the use, or None."""
        link = self._last
        while link.next:
            link = link.next[None]
        caller = link.caller()
        return caller if caller is not None and caller.is_under_way else None

    @property
    def is_elsewhere(self) -> bool:
        """Return whether another thread has the use."""
        return (holder := self.holder) is not None and holder.thread != get_ident()

    def take(self, caller: Caller) -> Caller | None:
        """Acquire the use and return None, or return the caller that has it."""
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
        """Call `take` after waiting up to `limit_s` seconds for another thread's caller, if one of the two is brief."""
        until_s = time.monotonic() + limit_s
        while (other := self.take(caller)) is not None:
            here = other.thread == caller.thread
            if here or not (other.is_brief or caller.is_brief) or time.monotonic() >= until_s:
                return other
            time.sleep(LOOKS_EACH_S)
        return None
