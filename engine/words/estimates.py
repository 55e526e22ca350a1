"""Reasons why a predicted figure is an estimate, and whether the true one is above or below, for reports and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from .phrases import MOST_NAMED
from .sizes import size_text

Direction = Literal["at least", "at most", "unknown"]
"""The true figure is "at least" or "at most" the predicted one, or on an unknown side of it."""


class Estimate(str):
    """A reason why a figure is an estimate: a sentence, and on which side of the figure the true one is.

    Attributes:
        direction: see `Direction`.
    """

    __slots__ = ("direction",)
    direction: Direction

    def __new__(cls, reason: str, direction: Direction = "unknown") -> Estimate:
        found = super().__new__(cls, reason)
        found.direction = direction
        return found


def direction_of(reasons: Iterable[str]) -> Direction | None:
    """Return the direction of a figure that is an estimate for all these reasons; None without a reason."""
    found = {reason.direction if isinstance(reason, Estimate) else "unknown" for reason in reasons}
    if not found:
        return None
    return found.pop() if len(found) == 1 else "unknown"


def bounded_size(nbytes: int, reasons: Iterable[str]) -> str:
    """`5.0 MiB`; `at least 5.0 MiB`, `at most 5.0 MiB` or `about 5.0 MiB` where these make it an estimate."""
    direction = direction_of(reasons)
    words = {None: "", "unknown": "about "}.get(direction, f"{direction} ")
    return words + size_text(nbytes)


def estimate_sentence(reasons: Iterable[str], whose: str = "", most: int = MOST_NAMED) -> str:
    """`An estimate: the workspace of mm is not known. The true figure may be higher.`, or `The peak of bfs is an
    estimate: ...`; "" where there is no reason.

    Args:
        reasons: as in `Timeline.estimates`; each is said once. Plain texts have no direction, and none is said.
        whose: what the figure is, at the beginning of the sentence.
        most: so many are said; of the others only how many there are.
    """
    said = list(dict.fromkeys(reasons))
    if not said:
        return ""
    more = f"; and {len(said) - most:,} more" if len(said) > most else ""
    truth = _TRUTH[direction_of(said)] if any(isinstance(each, Estimate) for each in said) else ""
    return f"{f'{whose} is an' if whose else 'An'} estimate: {'; '.join(said[:most])}{more}.{truth}"


_TRUTH = {
    "at least": " The true figure may be higher.",
    "at most": " The true figure may be lower.",
    "unknown": " The true figure may be higher or lower.",
    None: "",
}


def told_first(reasons: Sequence[str]) -> str:
    """The reason to say where there is room for one alone, in few words; "" where there is none.

    That a dry run does not see all that kernels take is said where no other says of which.
    """
    found = next((reason for reason in reasons if not reason.startswith(_GENERAL)), next(iter(reasons), ""))
    return found.replace("not known from a dry run:", "misses")


_GENERAL = "a dry run sees "
