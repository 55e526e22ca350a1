"""Measurement of a row of the table: both sides alternate, so that a slow machine slows both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

Timed = Callable[[], float]

clock: Timed = time.perf_counter
"""The clock of `seconds`."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of work of a benchmark. `tiny` makes it small, for the test that the benchmark still runs."""

    repetitions: int = 20
    tiny: bool = False
    limit_s: float = 60.0  # for one drawing of another tool
    folder: Path = Path("out")  # for pages with figures


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: one value per repetition in `unit`, or in `outcome` what came instead of a number.

    The goal is not to be exceeded; `at_least` says that it is to be reached. `note` is what else there is to say.
    """

    what: str
    unit: Literal["×", "s", "ms", "µs", "MiB", "kB", "%", "power"]
    values: tuple[float, ...] = ()
    goal: float | None = None
    outcome: str | None = None
    at_least: bool = False
    note: str = ""

    @property
    def measured(self) -> float | None:
        return median(self.values) if self.values else None


def seconds(call: Callable[[], Any]) -> float:
    """Return the time of one call. Its result is freed after the clock has stopped."""
    start = clock()
    result = call()
    elapsed = clock() - start
    del result
    return elapsed


def ratios(slower: Timed, faster: Timed, repetitions: int) -> tuple[float, ...]:
    """`slower` over `faster`, pair by pair, taken in turns after one warm-up of each. Both return seconds."""
    slower()
    faster()
    return tuple(slower() / faster() for _ in range(repetitions))


def repeated(call: Callable[[], Any], repetitions: int) -> tuple[float, ...]:
    """Seconds of each call, after a warm-up."""
    call()
    return tuple(seconds(call) for _ in range(repetitions))
