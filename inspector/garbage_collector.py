"""Pausing Python's garbage collector while many objects are made that are no garbage."""

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

_UNDISTURBED_S = 10.0  # how long a count waits for the looks of other threads, in all

_looking: dict[object, int] = {}  # the looks at all objects that are under way, each with its thread

_looks_begun: Counter[int] = Counter()  # the looks that began, by thread

_lock = RLock()  # a finalizer that runs below it may read a graph
_pausing: list[object] = []  # one object per pause, of all threads
_was_enabled = False  # when the first of them began


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector while graphs are read and laid out: it would take a third of the time to look through all
    their new objects. It runs again once the last pause of all threads has ended, if it ran before the first."""
    pause = object()
    try:  # an interrupt may come as soon as it is disabled
        _begin(pause)
        yield
    finally:
        try:
            _end(pause)
        except BaseException:  # Ctrl-C; to end it twice does no harm
            _end(pause)
            raise


def _begin(pause: object) -> None:
    global _was_enabled
    with _lock:
        if not _pausing:
            _was_enabled = gc.isenabled()
        _pausing.append(pause)
        gc.disable()


def _end(pause: object) -> None:
    with _lock:
        if pause in _pausing:
            if _was_enabled and len(_pausing) == 1:
                gc.enable()  # before the pause is dropped: one that begins in between would find it disabled
            _pausing.remove(pause)


@contextmanager
def all_objects() -> Iterator[list[Any]]:
    """A context with all objects that the collector tracks. It holds each of them, so `undisturbed` counts wait."""
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
    """Returns the result of `count`, which counts references, from a moment without a look in another thread.

    `count` may look at all objects itself.
    """
    own = get_ident()
    until_s = time.monotonic() + _UNDISTURBED_S
    while True:
        while any(thread != own for thread in list(_looking.values())) and time.monotonic() < until_s:
            time.sleep(LOOKS_EACH_S)
        begun = _looks_begun.total() - _looks_begun[own]
        found = count()
        if begun == _looks_begun.total() - _looks_begun[own] or time.monotonic() >= until_s:
            return found
