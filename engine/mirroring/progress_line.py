"""One line that tells how far the search for a mirror plan is, and is gone when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TextIO

from ..words.sizes import size_text
from .candidates import FoundDrops

Progress = Callable[[FoundDrops], object]
_AFTER_S = 0.5  # what takes no longer needs no line


@contextmanager
def progress_shown(asked: Progress | bool | None) -> Iterator[Progress | None]:
    """Whom to tell: who was asked for, or a line on stderr; None: only on a terminal or in a notebook.

    A notebook shows what comes on stderr as if something were wrong, so there the line is on stdout.
    """
    stream = sys.stdout if _is_of_a_notebook(sys.stderr) else sys.stderr
    if callable(asked):
        yield asked
    elif asked or (asked is None and _is_watched(stream)):
        line = _Line(stream)
        try:
            yield line
        finally:
            line.clear()
    else:
        yield None


def _is_watched(stream: TextIO | None) -> bool:
    """Whether somebody sees what is written as it is written: a terminal, or a notebook's kernel."""
    return stream is not None and (stream.isatty() or _is_of_a_notebook(stream))


def _is_of_a_notebook(stream: TextIO | None) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


class _Line:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = perf_counter()
        self._length = 0

    def __call__(self, found: FoundDrops) -> None:
        passed = perf_counter() - self._began
        if passed < _AFTER_S:
            return
        peak = found.mirrored.peak_bytes
        self._write(f"planning a mirror: {found.evaluations:,} choices, lowest peak {size_text(peak)}, {passed:.1f} s")

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
