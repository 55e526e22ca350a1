"""The rows as one table, with the machine they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from measure import Row
from rich.table import Table

from tapescope.engine.api.environment import Machine


def render(rows: Sequence[Row]) -> Table:
    """Median, spread and goal of each row. A goal that is missed says by how much, and that is all."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what")
    for heading in ("median", "min – max", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(row.what, _measured(row), _spread(row), _goal(row), _said(row))
    return table


def as_json(rows: Sequence[Row], machine: Machine) -> dict[str, object]:
    return {"machine": asdict(machine), "rows": [{**asdict(row), "measured": row.measured} for row in rows]}


def _measured(row: Row) -> str:
    return "" if row.measured is None else f"{_number(row.measured)} {row.unit}"


def _spread(row: Row) -> str:
    return f"{_number(min(row.values))} – {_number(max(row.values))}" if len(row.values) > 1 else ""


def _goal(row: Row) -> str:
    return "" if row.goal is None else f"{'≥ ' if row.at_least else ''}{row.goal:g} {row.unit}"


def _said(row: Row) -> str:
    return "; ".join(filter(None, (_verdict(row), row.note)))


def _verdict(row: Row) -> str:
    if row.goal is None or row.measured is None:
        return row.outcome or ""
    beyond = (row.measured / row.goal - 1) * (-1 if row.at_least else 1)
    if beyond > 0:
        return f"[red]missed by {beyond:.0%}[/red]"
    return f"[green]met, {-beyond:.0%} {'above' if row.at_least else 'below'}[/green]"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
