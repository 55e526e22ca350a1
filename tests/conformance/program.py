"""A program whose backward is tested: a forward that can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward: the outputs to differentiate, and the leaves whose gradients are compared."""

    outputs: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A forward that gives the same each time, from fresh copies of everything it touches.

    Attributes:
        name: entry, dtype, variant and number of the sample, as in "add float32 in-place #3".
        forward: runs it.
    """

    name: str
    forward: Callable[[], Forward]
