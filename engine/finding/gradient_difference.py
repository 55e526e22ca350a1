"""How far two gradients are apart, as far as their statistics tell."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..trace.statistics import Statistics
from ..trace.trace import RecordedGradient


class Apart(NamedTuple):
    """How far two gradients are apart.

    Attributes:
        share: a lower bound of their relative difference, see `apart`. Infinite where there is no comparing: one is
            missing, of another shape, or has NaN or infinite elements that the other one has not.
        by: what tells: "norm", "mean", "least", "largest", "NaN", "infinite", "shape", "missing".
        first, second: these of the two gradients.
    """

    share: float
    by: str
    first: float | str | None = None
    second: float | str | None = None


EQUAL = Apart(0.0, "norm")


def apart(first: RecordedGradient | None, second: RecordedGradient | None) -> Apart | None:
    """How far two gradients are apart; None where that is not known, for want of statistics.

    The gradients themselves, a and b, are not there any more, and so not their relative difference
    |a - b| / max(|a|, |b|). Three of their statistics bound it from below, so what they tell is there:

    - the norms: ||a| - |b|| <= |a - b|;
    - the means: |mean(a) - mean(b)| * sqrt(count) <= |a - b| (Cauchy and Schwarz);
    - the least and the largest element: |max(a) - max(b)| <= |a - b|.

    Histograms say nothing of the kind, and are not compared.
    """
    if first is None or second is None:
        return EQUAL if first is second else Apart(math.inf, "missing", *map(_presence, (first, second)))
    if first.meta.shape != second.meta.shape:
        return Apart(math.inf, "shape", *map(_shape, (first, second)))
    mine, other = first.statistics, second.statistics
    if mine is None or other is None or mine.nan_count is None or other.nan_count is None:
        return None
    if mine.nan_count != other.nan_count:
        return Apart(math.inf, "NaN", mine.nan_count, other.nan_count)
    if mine.inf_count != other.inf_count:
        return Apart(math.inf, "infinite", mine.inf_count, other.inf_count)
    return _of_finite(mine, other)


def _of_finite(first: Statistics, second: Statistics) -> Apart:
    if first.norm is None or second.norm is None:
        return EQUAL
    norm = max(first.norm, second.norm)
    found = [_relative("norm", first.norm, second.norm, norm)]
    if first.layout == second.layout:  # else one stores zeros that the other one does not
        count = max((first.count or 0) - (first.nan_count or 0) - (first.inf_count or 0), 1)
        found.append(_relative("mean", first.mean, second.mean, norm / math.sqrt(count)))
        found.append(_relative("least", first.min, second.min, norm))
        found.append(_relative("largest", first.max, second.max, norm))
    return max(found, key=lambda each: each.share)


def _relative(by: str, first: float | None, second: float | None, of: float) -> Apart:
    if first is None or second is None or first == second or not of:
        return EQUAL
    return Apart(abs(first - second) / of, by, first, second)


def _presence(gradient: RecordedGradient | None) -> str:
    return "none" if gradient is None else "a gradient"


def _shape(gradient: RecordedGradient) -> str:
    shape = gradient.meta.shape
    return "nested" if shape is None else "×".join(map(str, shape)) or "a scalar"
