"""Graph, layout and SVG of a captured forward. The forward itself is not measured."""

from __future__ import annotations

from collections.abc import Iterator

from measure import Effort, Row, repeated
from models import DRAWN, Drawn

import tapescope as ts


def rows(effort: Effort) -> Iterator[Row]:
    for drawn in DRAWN.values():
        yield from _rows_of(drawn, effort)


def _rows_of(drawn: Drawn, effort: Effort) -> Iterator[Row]:
    parts = drawn.parts(effort.tiny)
    with ts.capture(parts.model):
        loss = parts.criterion(parts.model(*parts.inputs), *parts.targets)
    repetitions = min(effort.repetitions, 5)

    yield Row(
        f"graph + SVG, {drawn.title}, repeats folded",
        "s",
        repeated(lambda: ts.graph(loss).to_svg(fold="repeats"), repetitions),
        drawn.goal_s,
    )
    yield Row(
        f"graph + SVG, {drawn.title}, all open",
        "s",
        repeated(lambda: ts.graph(loss).to_svg(fold="none"), repetitions),
        drawn.goal_s,
    )
