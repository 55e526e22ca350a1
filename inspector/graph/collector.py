"""Pausing Python's garbage collector while many objects are made that are no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

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
