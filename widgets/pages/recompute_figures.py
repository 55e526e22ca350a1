"""Figures of the rows of a comparison that ran under a recompute plan."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from ...engine.recompute.module_table import RIGHT, module_cells, module_sentences
from ...engine.studies.comparison import Comparison, Row
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import size_text, unit_name, unit_of
from .figure_html import Figures
from .notebook_figure import figure_of
from .plotly_data import Drawing, escaped
from .report_html import cells_html
from .theme import LATER, Colours, axis_style, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 300
_MOST_POINTS = 1500  # points of one line
_MEASURED, _PREDICTED = {"width": 3}, {"width": 1.2, "dash": "2px,3px"}


def recomputed_figure(comparison: Comparison, row: Row, theme: GraphTheme) -> go.Figure:
    """Return the figure; see `Comparison.recomputed_figure`."""
    return figure_of(recomputed_drawing(comparison, row, colours_of(theme)))


def recomputed_html(comparison: Comparison, figures: Figures, points: int) -> str:
    """Return a section for each row with a plan; the table of modules appears once for each plan."""
    found = []
    listed = set()
    for number, row in enumerate(comparison.rows):
        if row.plan is None:
            continue
        title = f"{row.policy}, measured and predicted"
        figure = figures.html(f"recomputed-{number}", title, recomputed_drawing(comparison, row, LATER, points))
        table = ""
        if row.plan not in listed and row.plan.dropped:
            table = "<h2>By module<span>memory dropped, and predicted recompute time</span></h2>"
            table += cells_html(module_cells(row.plan), module_sentences(row.plan), RIGHT)
        listed.add(row.plan)
        found.append(
            f"<section><h2>{escape(row.policy)}<span>the highest memory during each task, measured and predicted"
            f"</span></h2>{figure}{table}</section>"
        )
    return "".join(found)


def recomputed_drawing(comparison: Comparison, row: Row, colours: Colours, points: int = _MOST_POINTS) -> Drawing:
    """Return a drawing of the memory of a row with a plan and of the one without, each measured and predicted.

    Raises:
        ValueError: if the row has no plan.
    """
    if row.plan is None:
        planned = ", ".join(repr(each.policy) for each in comparison.rows if each.plan is not None)
        raise ValueError(f"{row.policy!r} ran without a plan; expected one of {planned or 'no rows'}")
    rows = {row.policy: (row, "accent")}
    if (plain := comparison.without(row)) is not None:
        rows = {plain.policy: (plain, "ink3"), **rows}
    every = [levels for each, _ in rows.values() for levels in (each.timeline.task_peaks, each.predicted_levels)]
    highest = max((max(levels, default=0) for levels in every), default=0)
    scale = unit_of(highest)
    measured = [
        _line(name, each.timeline.task_peaks, scale, points, _MEASURED | {"color": colours[colour]})
        for name, (each, colour) in rows.items()
    ]
    predicted = [  # drawn on top, because they mostly coincide with the measured lines
        _line(f"{name}, predicted", each.predicted_levels, scale, points, _PREDICTED | {"color": colours["ink"]})
        for name, (each, _) in rows.items()
        if each.predicted_levels
    ]
    count = len(row.timeline.order)
    layout = {
        "height": _HEIGHT,
        "margin": {"l": 64, "r": 24, "t": 44, "b": 46},
        **figure_style(colours),
        "hovermode": "x unified",
        "hoverlabel": hover_label(colours),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": colours["ink2"]}},
        "xaxis": axis_style(colours, "task, in the order in which they run")
        | {"range": [0, count], "showgrid": False, "unifiedhovertitle": {"text": "after %{x} tasks"}},
        "yaxis": axis_style(colours)
        | {
            "range": [0, 1.1 * highest / 1024**scale or 1],
            "ticksuffix": f" {unit_name(scale)}",
            "fixedrange": True,
        },
    }
    return {"data": [*measured, *predicted], "layout": layout}


def _line(name: str, levels: Sequence[int], scale: int, points: int, style: dict[str, object]) -> Drawing:
    """Return the levels as a stepped line; with many tasks each point is the highest of several."""
    together = max(1, -(-len(levels) // points))
    starts = range(0, len(levels), together)
    highest = [max(levels[start : start + together]) for start in starts]
    highest.append(highest[-1] if highest else 0)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escaped(name),
        "x": [*starts, len(levels)],
        "y": [level / 1024**scale for level in highest],
        "customdata": list(map(size_text, highest)),
        "hovertemplate": f"{escaped(name)}  %{{customdata}}<extra></extra>",
        "line": {"shape": "hv", **style},
    }
