"""What the caller of `ts.plan_recompute` wants of a plan: a budget, and how much longer a step may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...inspector.text.sizes_and_counts import SIZES, bytes_of, refuse_bare_size
from ...inspector.validation import expect_number

OVERHEAD = 0.06
"""How much longer a step may take where nothing else is said: what Echo took for ResNet-152 (Zheng et al., 2020)."""

Budget = int | float | str
"""Bytes, as a number or as "8GiB" or "8GB"; or a share of the peak without recomputation, 0.5 for half."""

_WANTED = "a number of bytes above 0, or a share of the peak without recomputation, as 0.5"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted.

    Attributes:
        budget: bytes, or a share of the peak without recomputation; None: the lowest peak that `overhead` pays for.
        overhead: how much longer a step may take, as a share; infinite: any time.
    """

    budget: int | float | None
    overhead: float

    @staticmethod
    def of(budget: Budget | None, overhead: float | None) -> Wanted:
        """What the arguments say.

        Raises:
            TypeError, ValueError: one of them is no such number.
        """
        if overhead is not None and not (isinstance(overhead, int | float) and 0 <= overhead < math.inf):
            raise ValueError(f"overhead is a share of a step's time, 0.06 for 6 %, not {overhead!r}")
        if isinstance(overhead, int) and overhead > 1:
            raise ValueError(
                f"overhead is {overhead}, which would be {overhead}00 % of a step's time; {overhead} % is "
                f"{overhead / 100}, and {overhead} times a step {overhead}.0"
            )
        wanted = None if budget is None else budget_of(budget)
        if isinstance(budget, int):
            refuse_bare_size(budget, "budget", ", or a share of the peak without recomputation, 0.5 for half of it")
        if overhead is None:
            overhead = OVERHEAD if budget is None else math.inf
        return Wanted(wanted, float(overhead))

    def peak_bytes(self, plain: int) -> int | None:
        """The peak that is wanted, where this is the one without recomputation."""
        return None if self.budget is None else budget_bytes(self.budget, plain)

    def extra_ns(self, plain_ns: float) -> float:
        """How much longer a step may take, of one that takes this long."""
        return self.overhead * plain_ns


def expect_seconds(seconds: object) -> None:
    """Refuses what is no time for a search."""
    if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"seconds is how long to search, a number from 0 on, not {seconds!r}")


def budget_of(budget: Budget) -> int | float:
    """The budget as a number: bytes where it is whole, else a share.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(budget, str):
        found: int | float = bytes_of(budget, "budget", _WANTED)
    else:
        expect_number(budget, int | float, "budget", f"{_WANTED}, or a size {SIZES}")
        found = budget
    if not (found > 0 if isinstance(found, int) else 0 < found <= 1):
        raise ValueError(f"budget is {budget!r}; expected {_WANTED}, or a size {SIZES}")
    return found


def budget_bytes(budget: int | float, plain: int) -> int:
    """The peak that a budget allows, where this is the one without recomputation."""
    return budget if isinstance(budget, int) else int(budget * plain)
