"""The printed table: a row for each model, a column for each verb, and the refusals and errors below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from results import Cell, Row
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_STYLES = {"right": "", "estimate": "yellow", "refused": "cyan", "wrong": "bold red", "skipped": "dim"}


def report(rows: Sequence[Row], verbs: Sequence[str], console: Console) -> bool:
    """Prints the rows. Whether nothing is wrong."""
    table = Table("stranger", *verbs, "s", box=None, pad_edge=False)
    for row in rows:
        cells = (_text(row.cells.get(verb)) for verb in verbs)
        table.add_row(escape(row.name), *cells, f"{row.seconds:.0f}")
    console.print(table)
    notes = Counter(
        (cell.outcome, verb, cell.text, row.name)
        for row in rows
        for verb, cell in row.cells.items()
        if cell.outcome in ("refused", "wrong", "skipped")
    )
    for outcome, verb, text, name in sorted(notes, key=lambda note: (note[0], note[1])):
        style = _STYLES[outcome]
        console.print(f"[{style}]{outcome}[/{style}] {escape(name)}, {verb}: {escape(text)}", highlight=False)
    outcomes = Counter(cell.outcome for row in rows for cell in row.cells.values())
    told = ", ".join(f"{outcomes[each]} {each}" for each in _STYLES if outcomes[each])
    console.print(f"{len(rows)} strangers, {outcomes.total()} results: {told}", highlight=False)
    return not outcomes["wrong"]


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    style = _STYLES[cell.outcome]
    text = escape(cell.text) if cell.outcome in ("right", "estimate") else cell.outcome
    if cell.outcome == "estimate":
        text = f"~ {text}"
    return f"[{style}]{text}[/{style}]" if style else text
