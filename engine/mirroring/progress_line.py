"""One line that tells how far the search for a mirror plan is, and is gone when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..words.sizes import size_text
from ..words.told_line import ToldLine, line_shown, quiet
from .candidates import FoundDrops

Progress = Callable[[FoundDrops], object]
_AFTER_S = 0.5  # what takes no longer needs no line


@contextmanager
def progress_shown(asked: Progress | bool | None) -> Iterator[Progress | None]:
    """Whom to tell: who was asked for, or a line on stderr; None: only on a terminal or in a notebook."""
    if callable(asked) or asked is False:
        with quiet():  # what it calls are verbs with lines of their own
            yield asked or None
    else:
        with line_shown(_AFTER_S, always=bool(asked)) as line:
            yield None if line is None else (lambda found: _tell(line, found))


def _tell(line: ToldLine, found: FoundDrops) -> None:
    peak = size_text(found.mirrored.peak_bytes)
    line(f"planning a mirror: {found.evaluations:,} choices, lowest peak {peak}, {line.passed_s:.1f} s")
