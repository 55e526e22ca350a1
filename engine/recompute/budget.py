"""The budget and the overhead that a caller of `ts.plan_recompute` asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...inspector.text.sizes_and_counts import SIZES, bytes_of, refuse_bare_size
from ...inspector.validation import expect_number

OVERHEAD = 0.06
"""Default share by which a step may take longer: Echo's overhead for ResNet-152 (Zheng et al., 2020)."""

Budget = int | float | str
"""Bytes, as a number or a size such as "8GiB" or "8GB"; or a share of the peak without recomputation, such as 0.5."""

_WANTED = "a positive number of bytes, a share of the peak without recomputation such as 0.5"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested peak and time.

    Attributes:
        budget: bytes, or a share of the peak without recomputation; None for the lowest peak within `overhead`.
        overhead: share by which a step may take longer; infinite for no limit.
    """

    budget: int | float | None
    overhead: float

    @staticmethod
    def of(budget: Budget | None, overhead: float | None) -> Wanted:
        """Check the arguments of `ts.plan_recompute` and fill in the defaults.

        Raises:
            TypeError, ValueError: if one of them is not a valid number.
        """
        if overhead is not None and not (isinstance(overhead, int | float) and 0 <= overhead < math.inf):
            raise ValueError(f"overhead must be a share of the step time, such as 0.06 for 6 %, got {overhead!r}")
        # An integer such as 6 is most likely meant as 6 %.
        if isinstance(overhead, int) and overhead > 1:
            raise ValueError(
                f"overhead={overhead} means {overhead}00 % of the step time; write {overhead / 100} for {overhead} %, "
                f"or {overhead}.0 for {overhead} times the step time"
            )
        wanted = None if budget is None else budget_of(budget)
        if isinstance(budget, int):
            refuse_bare_size(
                budget, "budget", ", or a share of the peak without recomputation, such as 0.5 for half of it"
            )
        if overhead is None:
            overhead = OVERHEAD if budget is None else math.inf
        return Wanted(wanted, float(overhead))

    def peak_bytes(self, plain: int) -> int | None:
        """Return the requested peak, given the peak without recomputation; None if no budget is set."""
        return None if self.budget is None else budget_bytes(self.budget, plain)

    def extra_ns(self, plain_ns: float) -> float:
        """Return the time by which a step of `plain_ns` may take longer."""
        return self.overhead * plain_ns


def expect_seconds(seconds: object) -> None:
    """Raise ValueError unless `seconds` is a finite number of at least 0."""
    if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"seconds (the search time) must be a number of at least 0, got {seconds!r}")


def budget_of(budget: Budget) -> int | float:
    """Return the budget as a number: bytes as an int, a share as a float.

    Raises:
        TypeError, ValueError: if it is not a valid budget.
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
    """Return the peak that a budget allows, given the peak without recomputation."""
    return budget if isinstance(budget, int) else int(budget * plain)
