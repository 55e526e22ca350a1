"""Whether a predicted figure is an estimate, and why, in one sentence: reports, tables and pages all ask here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .phrases import MOST_NAMED


def estimate_sentence(reasons: Iterable[str], whose: str = "", most: int = MOST_NAMED) -> str:
    """`An estimate: hooks were not run.`, or `The peak of bfs is an estimate: ...`; "" where there is no reason.

    Args:
        reasons: as in `Timeline.estimates`; each is said once.
        whose: what the figure is, at the beginning of the sentence.
        most: so many are said; of the others only how many there are.
    """
    said = list(dict.fromkeys(reasons))
    if not said:
        return ""
    more = f"; and {len(said) - most:,} more" if len(said) > most else ""
    return f"{f'{whose} is an' if whose else 'An'} estimate: {'; '.join(said[:most])}{more}."


def told_first(reasons: Sequence[str]) -> str:
    """The reason to say where there is room for one alone, in few words; "" where there is none.

    That a dry run does not see all that kernels take is said where no other says of which.
    """
    found = next((reason for reason in reasons if not reason.startswith(_GENERAL)), next(iter(reasons), ""))
    return found.replace("not known from a dry run:", "misses")


_GENERAL = "a dry run sees "
