"""How far an iterator is. None can be wound back, so what counts is whether somebody has advanced it."""

from __future__ import annotations

import gc
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import is_, length_hint
from types import GeneratorType
from typing import Any

_SEQUENCES: tuple[Any, ...] = ([], (), "", "ä", b"", bytearray())
_BY_INDEX = {type(iter(each)) for each in _SEQUENCES} | {type(reversed([])), reversed}
"""Iterators of sequences, whose `__reduce__` tells the index. Another count would be wrong of a list that grows."""

_DICTS: tuple[Any, ...] = ({}, {}.values(), {}.items())
_COUNTED: tuple[Any, ...] = (range(1), range(1 << 70), set(), *_DICTS)
_BY_REST = {type(iter(each)) for each in _COUNTED} | {type(reversed(each)) for each in _DICTS} | {itertools.repeat}
"""Those that tell how much is left."""

_BY_OTHERS = {zip, map, filter, enumerate, type(iter(int, 1))}
_BY_OTHERS |= {
    getattr(itertools, name)
    for name in (
        *("accumulate", "batched", "chain", "compress", "dropwhile", "filterfalse", "islice", "pairwise", "starmap"),
        *("takewhile", "zip_longest"),
    )
    if hasattr(itertools, name)  # batched: since Python 3.12
}
"""Those that go on as the iterators do to which they refer."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an iterator, or a file that is read, was.

    Attributes:
        others: what it referred to: of a generator also what waits on its stack.
    """

    iterator: Iterator[Any]
    at: object
    others: tuple[Any, ...]

    @staticmethod
    def of(iterator: Iterator[Any]) -> Progress | None:
        """None for one of which that can't be seen."""
        at = _at(iterator)
        others = () if isinstance(iterator, io.IOBase) else tuple(gc.get_referents(iterator))
        return None if at is None else Progress(iterator, at, others)

    @property
    def is_another(self) -> bool:
        """Whether somebody has advanced it since."""
        now = Progress.of(self.iterator)
        if now is None or now.at != self.at or len(now.others) != len(self.others):
            return True
        return not all(map(is_, now.others, self.others))


def is_iterator(found: object) -> bool:
    """Whether it is an iterator that is written in C, or a file that is only read. Others keep what they are in
    attributes; a file that is written stays written."""
    if isinstance(found, io.IOBase):
        return not found.closed and found.readable() and not found.writable()
    return isinstance(found, Iterator) and not hasattr(found, "__dict__")


def _at(iterator: Any) -> object:
    if isinstance(iterator, io.IOBase):
        try:
            return -1 if iterator.closed else iterator.tell()
        except OSError:  # a pipe; a text that is read by `for`
            return None
    if isinstance(iterator, GeneratorType):
        return "over" if iterator.gi_frame is None else iterator.gi_frame.f_lasti
    kind: type = type(iterator)
    if kind is itertools.count:
        return repr(iterator)
    if kind in _BY_INDEX:
        return iterator.__reduce__()[-1]
    if kind in _BY_REST:
        return length_hint(iterator, -1)  # of `repeat` without an end
    return "as they are" if kind in _BY_OTHERS else None
