"""Pausing Python's garbage collector while many objects are created, and searching all tracked objects."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, TypeVar

from .threads import LOOKS_EACH_S

T = TypeVar("T")

_UNDISTURBED_S = 10.0  # total seconds that a count waits for searches in other threads

_looking: dict[object, int] = {}  # running searches of all objects, with their thread

_looks_begun: Counter[int] = Counter()  # searches begun, by thread

_lock = RLock()  # reentrant: a finalizer that runs while it is held may read a graph
_pausing: list[object] = []  # one object per pause, of all threads
_was_enabled = False  # whether the collector was enabled at the first pause


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector while graphs are read and laid out; otherwise it would take a third of the time.

    It is enabled again when the last pause of all threads has ended, if it was enabled before the first.
    """
    global _was_enabled
    pause = object()
    try:  # entered first, because an interrupt may come as soon as it is disabled
        with _lock:
            if not _pausing:
                _was_enabled = gc.isenabled()
            _pausing.append(pause)
            gc.disable()
        yield
    finally:
        try:
            _end(pause)
        except BaseException:  # Ctrl-C; ending a pause twice is harmless
            _end(pause)
            raise


def _end(pause: object) -> None:
    with _lock:
        if pause in _pausing:
            if _was_enabled and len(_pausing) == 1:
                gc.enable()  # first, or a pause that begins now would find it disabled
            _pausing.remove(pause)


@contextmanager
def all_objects() -> Iterator[list[Any]]:
    """Yield all objects tracked by the collector. The list refers to each of them, so `undisturbed` waits for it."""
    look = object()
    objects: list[Any] = []
    try:
        _looking[look] = get_ident()
        _looks_begun[get_ident()] += 1
        objects = gc.get_objects()
        yield objects
    finally:
        objects.clear()
        _looking.pop(look, None)


def undisturbed(count: Callable[[], T]) -> T:
    """Return the result of `count`, which counts references, from a moment without `all_objects` in another thread.

    `count` may use `all_objects` itself.
    """
    own = get_ident()
    until_s = time.monotonic() + _UNDISTURBED_S
    while True:
        # Read this before the wait. A search is listed before it is counted, so a search that begins in between is
        # noticed.
        begun = _looks_begun.total() - _looks_begun[own]
        while any(thread != own for thread in list(_looking.values())) and time.monotonic() < until_s:
            time.sleep(LOOKS_EACH_S)
        found = count()
        if begun == _looks_begun.total() - _looks_begun[own] or time.monotonic() >= until_s:
            return found
