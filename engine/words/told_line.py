"""One line that tells what is being done, where somebody sees it being written; it is gone when that ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TextIO

Tell = Callable[[str], object]
_AFTER_S = 2.0  # what takes no longer needs no line


@contextmanager
def telling(asked: Tell | None, what: str) -> Iterator[Tell]:
    """Whom to tell what comes next: who was asked for, or a line, `comparing: bfs, round 3 of 7`, where one is seen."""
    if asked is not None:
        yield asked
        return
    with line_shown(_AFTER_S) as line:
        yield (lambda said: None) if line is None else (lambda said: line(f"{what}: {said}"))


@contextmanager
def line_shown(after_s: float, always: bool = False) -> Iterator[ToldLine | None]:
    """A line on stderr; None where that is neither a terminal nor in a notebook.

    A notebook shows what comes on stderr as if something were wrong, so there the line is on stdout.

    Args:
        after_s: what is told before so many seconds is left out.
        always: a line wherever stderr goes.
    """
    stream = sys.stdout if _is_of_a_notebook(sys.stderr) else sys.stderr
    if not (always or _is_watched(stream)):
        yield None
        return
    line = ToldLine(stream, after_s)
    try:
        yield line
    finally:
        line.clear()


def _is_watched(stream: TextIO | None) -> bool:
    """Whether somebody sees what is written as it is written: a terminal, or a notebook's kernel."""
    return stream is not None and (stream.isatty() or _is_of_a_notebook(stream))


def _is_of_a_notebook(stream: TextIO | None) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


class ToldLine:
    """It has no thread, which would be measured, too."""

    def __init__(self, stream: TextIO, after_s: float) -> None:
        self._stream = stream
        self._after_s = after_s
        self._began = perf_counter()
        self._length = 0

    @property
    def passed_s(self) -> float:
        return perf_counter() - self._began

    def __call__(self, text: str) -> None:
        if self.passed_s >= self._after_s:
            self._write(text)

    def clear(self) -> None:
        """Takes the line away."""
        if self._length:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)
