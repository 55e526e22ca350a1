"""The output of a sweep: totals per check, the exceptions with their reasons, and the unexplained differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from checks import CHECKS
from exceptions import KNOWN, Known
from results import COMPARED, NOTHING, RAISES, Finding, Swept
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_MOST = 50  # of the kinds of what is not explained, so that one broken rule does not fill the screen
_WIDTH = 400


def explanation(finding: Finding, known: Sequence[Known] = KNOWN) -> Known | None:
    """The exception which a finding is, if it is one."""
    return next((each for each in known if each.explains(finding.program, finding.check, finding.outcome)), None)


def as_json(swept: Sequence[Swept], known: Sequence[Known] = KNOWN) -> dict[str, list[Any]]:
    """A sweep's entries, those with an explained exception, and the findings that nothing explains."""
    explained = {each.entry for each in swept for finding in each.findings if explanation(finding, known) is not None}
    unexplained = [
        {
            "entry": each.entry,
            "program": finding.program,
            "check": finding.check,
            "outcome": finding.outcome,
            "reason": finding.reason,
        }
        for each in swept
        for finding in each.findings
        if explanation(finding, known) is None
    ]
    return {"entries": [each.entry for each in swept], "explained": sorted(explained), "unexplained": unexplained}


def report(swept: Sequence[Swept], console: Console, whole: bool, known: Sequence[Known] = KNOWN) -> bool:
    """Prints a sweep. Whether all of it is equal or explained.

    Args:
        swept: the entries' results.
        console: where to.
        whole: whether nothing was left out, so that an exception which explains nothing is not needed any more.
        known: the exceptions.
    """
    outcomes: Counter[tuple[str, str]] = sum((each.outcomes for each in swept), Counter())
    columns = ("equal", "same error", "nondeterministic", "refused", "failed")
    table = Table("check", *columns, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for check in CHECKS:
        table.add_row(check.name, *(f"{outcomes[check.name, outcome]:,}" for outcome in columns))
    console.print(table)
    ran: Counter[str] = sum((each.programs for each in swept), Counter())
    console.print(
        f"{len(swept)} entries, {sum(each.programs[COMPARED] > 0 for each in swept)} of them compared; of "
        f"{ran.total():,} programs {ran[COMPARED]:,} {COMPARED}, {ran[RAISES]:,} {RAISES}, {ran[NOTHING]:,} {NOTHING}"
    )
    explained: dict[Known, list[Finding]] = {}
    unexplained: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in (finding for each in swept for finding in each.findings):
        why = explanation(finding, known)
        if why:
            explained.setdefault(why, []).append(finding)
        else:
            unexplained.setdefault((finding.check, finding.outcome, finding.reason), []).append(finding)
    for why, found in explained.items():
        _line(console, f"known, {why.outcome}", found, why.reason)
    for (check, outcome, reason), found in list(unexplained.items())[:_MOST]:
        _line(console, f"[red]{outcome}[/red], {check}", found, reason)
    if len(unexplained) > _MOST:
        console.print(f"and {len(unexplained) - _MOST:,} more kinds")
    if whole:
        for entry in known:
            if entry not in explained:
                console.print(f"[yellow]not needed any more[/yellow]: {entry}", highlight=False)
    return not unexplained


def _line(console: Console, what: str, found: Sequence[Finding], reason: str) -> None:
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    said = shorten(reason.partition("\n")[0], _WIDTH)  # PyTorch's can list every backend there is
    console.print(f"{what}: {found[0].program}{more}: {escape(said)}", highlight=False)
