"""One progress line on a terminal or in a notebook, which is erased at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, Timer
from time import perf_counter
from typing import TextIO

Tell = Callable[[str], object]
_AFTER_S = 2.0  # what takes no longer needs no line

_OUTER: ContextVar[bool] = ContextVar("tapescope_is_telling", default=False)
"""Whether somebody tells already: what a verb calls that is one itself says nothing between its lines."""


@contextmanager
def telling(asked: Tell | None, what: str, *, timed: bool = False) -> Iterator[Tell]:
    """Return the progress callback: the given one, or a line such as `comparing: bfs, round 3 of 7`.

    Args:
        asked: who asked for it.
        what: what is being done, in the midst of a sentence.
        timed: times are taken meanwhile: no thread waits to write the line, and it comes with what is told next.
    """
    if asked is None and not _OUTER.get():
        with line_shown(_AFTER_S, waits=not timed) as line:
            yield silent if line is None else (lambda said: line(f"{what}: {said}"))
    else:
        with quiet():
            yield silent if asked is None else asked


@contextmanager
def quiet() -> Iterator[None]:
    """No verb in it shows a line: somebody else tells."""
    outer = _OUTER.set(True)
    try:
        yield
    finally:
        _OUTER.reset(outer)


@contextmanager
def line_shown(after_s: float, always: bool = False, waits: bool = False) -> Iterator[ToldLine | None]:
    """A line on stderr; None where that is neither a terminal nor in a notebook, or where somebody tells already.

    A notebook shows what comes on stderr as if something were wrong, so there the line is on stdout.

    Args:
        after_s: what is told before so many seconds is left out.
        always: a line wherever stderr goes.
        waits: what was told before is written when so many seconds have passed, by a thread that ends with the line.
    """
    stream = sys.stdout if _is_of_a_notebook(sys.stderr) else sys.stderr
    if not always and (_OUTER.get() or not _is_watched(stream)):
        yield None
        return
    line = ToldLine(stream, after_s, waits)
    try:
        with quiet():
            yield line
    finally:
        line.clear()


def silent(said: str) -> None:
    """Nobody sees it."""


def _is_watched(stream: TextIO | None) -> bool:
    """Return whether output is shown as it is written: on a terminal, or by a notebook's kernel."""
    return stream is not None and (stream.isatty() or _is_of_a_notebook(stream))


def _is_of_a_notebook(stream: TextIO | None) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


class ToldLine:
    """What is told stands where what was told before stood.

    Args:
        waits: a thread writes what was told too early, once, and is gone when the line is.
    """

    def __init__(self, stream: TextIO, after_s: float, waits: bool = False) -> None:
        self._stream = stream
        self._after_s = after_s
        self._waits = waits
        self._began = perf_counter()
        self._length = 0
        self._last = ""
        self._timer: Timer | None = None
        self._writing = Lock()

    @property
    def passed_s(self) -> float:
        return perf_counter() - self._began

    def __call__(self, text: str) -> None:
        with self._writing:
            self._last = text
            left = self._after_s - self.passed_s
            if left <= 0:
                self._write(text)
            elif self._waits and self._timer is None:
                self._timer = Timer(left, self._write_late)
                self._timer.daemon = True
                self._timer.start()

    def _write_late(self) -> None:
        with self._writing:
            if self._waits:
                self._write(self._last)

    def clear(self) -> None:
        """Takes the line away, and the thread."""
        with self._writing:
            self._waits = False
            if self._length:
                self._write("")
                self._stream.write("\r")
                self._stream.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)
