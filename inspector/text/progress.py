"""A single progress line on a terminal or in a notebook, erased at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from statistics import median
from threading import Lock, Timer
from time import perf_counter
from typing import TextIO

Tell = Callable[[str], object]
_AFTER_S = 2.0  # shorter operations show no line

_OUTER: ContextVar[bool] = ContextVar("tapescope_is_telling", default=False)
"""True if a progress line is already shown, so that nested operations show none."""


@contextmanager
def telling(asked: Tell | None, what: str, *, timed: bool = False) -> Iterator[Tell]:
    """Return the progress callback: the one passed, or a line such as `comparing: bfs, round 3 of 7`.

    Args:
        asked: the callback passed by the user, or None.
        what: the operation, as it appears within a sentence.
        timed: whether times are measured meanwhile. Then no thread writes the line later; it appears with the next
            message.
    """
    if asked is None and not _OUTER.get():
        with line_shown(_AFTER_S, waits=not timed) as line:
            yield silent if line is None else (lambda said: line(f"{what}: {said}"))
    else:
        with quiet():
            yield silent if asked is None else asked


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress lines of nested operations."""
    outer = _OUTER.set(True)
    try:
        yield
    finally:
        _OUTER.reset(outer)


@contextmanager
def line_shown(after_s: float, always: bool = False, waits: bool = False) -> Iterator[UpdatingLine | None]:
    """Show a line on stderr. Yield None if stderr is neither a terminal nor a notebook, or if a line is already shown.

    A notebook marks output on stderr as an error, so there the line is on stdout.

    Args:
        after_s: seconds during which messages are not written.
        always: whether to show a line wherever stderr goes.
        waits: whether a thread writes the last early message once `after_s` has passed; it ends with the line.
    """
    stream = sys.stdout if _is_of_a_notebook(sys.stderr) else sys.stderr
    if not always and (_OUTER.get() or not _is_watched(stream)):
        yield None
        return
    line = UpdatingLine(stream, after_s, waits)
    try:
        with quiet():
            yield line
    finally:
        line.clear()


class TimeLeft:
    """A progress callback that adds an estimate of the time left, such as `, about 40 s left`.

    The estimate is the median time of the finished runs, times the number of runs left.

    Args:
        tell: the callback that receives the messages.
        runs: the number of runs, or the sum of their weights.
    """

    def __init__(self, tell: Tell, runs: float) -> None:
        self._tell = tell
        self._left = runs
        self._rates: list[float] = []
        self._began, self._running = 0.0, 0.0

    def __call__(self, said: str, weight: float = 1.0) -> None:
        """Tell which run starts, and that it takes as long as `weight` others."""
        now = perf_counter()
        if self._running:
            self._rates.append((now - self._began) / self._running)
            self._left -= self._running
        self._began, self._running = now, weight
        if self._rates:
            seconds = max(median(self._rates) * self._left, 1.0)
            said += f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"
        self._tell(said)


def silent(said: object) -> None:
    """Ignore a progress message."""


def _is_watched(stream: TextIO | None) -> bool:
    """Return whether output is shown as it is written: on a terminal, or by a notebook's page.

    nbconvert, nbclient and papermill run a notebook without a page, and would store each state of the line. They cannot
    answer `input()`, and say so in each request.
    """
    if stream is None or not _is_of_a_notebook(stream):
        return stream is not None and stream.isatty()
    from IPython import get_ipython  # imported already, by the kernel

    shell = get_ipython()
    request = {} if shell is None else shell.get_parent()
    return bool(request.get("content", {}).get("allow_stdin", True))


def _is_of_a_notebook(stream: TextIO | None) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


class UpdatingLine:
    """A progress line whose messages replace one another.

    Args:
        waits: whether a thread writes the last message that came too early, once; it ends with the line.
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
        """Erase the line and end the thread."""
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
