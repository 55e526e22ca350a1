"""Accumulation studies as a notebook table, a figure, and one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...engine.studies.accumulation_study import FUSED, AccumulationStudy, StudiedRule
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import size_text, unit_name, unit_of
from .glossary import COLUMNS
from .notebook_figure import figure_of
from .page_frame import studies_page
from .plotly_data import Drawing, escaped
from .report_html import cells_html
from .theme import Colours, axis_style, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 360
_MOST_POINTS = 52  # per curve; each step of an RNN fits in one point
_FORWARD = 25.0  # width of the forward on the axis, if the backward is 100 wide
_BEFORE = "before the forward"
_LOWEST = 0.2  # bottom of the axis, as a share of the peak by hand; lower levels are drawn on it
_COLOURS = {"inplace": "accent", "out_of_place": "saved", "list": "pgrad"}
_DASHES = {
    ("freed", False): "solid",
    ("freed", True): "dash",
    ("kept", False): "dot",
    ("kept", True): "dashdot",
}
"""The dash of a rule's line, by graph rule and by whether consumed gradients are kept."""

_WORDS = {
    "by hand": "no autograd: a hand-written gradient, which adds each product to its sum",
    "fused": "the same, with each product computed and added in one call, without a temporary tensor",
    "PyTorch": "PyTorch's own engine",
    "in place": "the direct engine with PyTorch's rule: each gradient is added in place to the input buffer",
    "out of place": "each sum is a new tensor",
    "list": "all gradients are kept in a list, and summed when their task runs",
    "never released": "input buffers are kept until the backward ends",
    "graph kept": "nodes keep their saved tensors until the backward ends, as with retain_graph=True; in other rows "
    "they free them as they run",
    "HIPS autograd": "the autograd package on NumPy, measured with tracemalloc, which counts Python objects too",
    "over by hand": "the peak, divided by the peak of the gradient by hand",
    "over PyTorch": "the peak, divided by the peak under PyTorch's engine",
    "predicted": "the peak simulated from another row's run; exact means equal to the byte",
}


def page_html(studies: Sequence[AccumulationStudy], title: str) -> str:
    """Return a page of studies."""
    columns = {heading: COLUMNS[heading] for heading in ("peak", "average", "time")}
    drawings: dict[str, Callable[[AccumulationStudy, Colours], Drawing]] = {
        "The backward, over its steps": study_drawing,
        "Forward and backward, over time": partial(study_drawing, clock=True),
    }
    return studies_page(title, studies, study_html, drawings, {**_WORDS, **columns})


def study_html(study: AccumulationStudy) -> str:
    """Return a study's sentences and table as HTML, including its style sheet."""
    highest = max(row.peak_bytes for row in study.rows) or 1
    bars = [100 * row.peak_bytes / highest for row in study.rows]
    return cells_html(
        study.cells, study.sentences, ("peak", f"over {study.reference}", "average", "predicted", "time"), bars
    )


def study_figure(
    study: AccumulationStudy, theme: GraphTheme = "auto", *, forward: bool = False, clock: bool = False
) -> go.Figure:
    """Return `study_drawing` as a plotly figure."""
    return figure_of(study_drawing(study, colours_of(theme), forward=forward, clock=clock))


def study_drawing(study: AccumulationStudy, colours: Colours, *, forward: bool = False, clock: bool = False) -> Drawing:
    """Draw each row's memory over the steps of the backward. The filled area belongs to the reference.

    The levels differ by large factors, so over steps their axis is logarithmic. Levels far below the peak by hand are
    drawn on the bottom of the axis. Over time the axis is linear, as in the pictures of HIPS/autograd #219.

    Args:
        study: a study.
        colours: the figure's colours.
        forward: also draw the steps of the forward.
        clock: draw forward and backward over milliseconds since the forward's first allocation instead of steps.
    """
    hand = study[study.reference]
    points_of = _over_time if clock else _over_steps if forward else _points
    floor = 0.0 if clock else _LOWEST * hand.peak_bytes
    highest = max(row.peak_bytes for row in study.rows)
    scale = unit_of(highest)
    traces: list[Drawing] = []
    for row in study.rows:
        points = list(points_of(row))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{escaped(row.name)}  <b>{size_text(row.peak_bytes)}</b>",
                "x": [share for share, _, _ in points],
                # A logarithmic axis cannot show 0, so low levels are drawn on its bottom.
                "y": [max(level, floor) / 1024**scale for _, level, _ in points],
                "customdata": [f"<b>{escaped(row.name)}</b>  {size_text(level)}, {when}" for _, level, when in points],
                "hovertemplate": "%{customdata}<extra></extra>",
                "line": {"shape": "hv", **_line(row, colours)},
                **({"fill": "tozeroy", "fillcolor": colours["sunk"]} if row is hand else {}),
            }
        )
    layout: Drawing = {
        "height": _HEIGHT,
        "margin": {"l": 70, "r": 12, "t": 16, "b": 46},
        **figure_style(colours),
        "hovermode": "closest",
        "hoverlabel": {"align": "left", **hover_label(colours)},
        "legend": {"font": {"color": colours["ink"]}, "tracegroupgap": 0},
        "xaxis": axis_style(colours) | {"showgrid": False},
        "yaxis": axis_style(colours),
    }
    if clock:
        layout["yaxis"] |= {"rangemode": "tozero", "ticksuffix": f" {unit_name(scale)}", "fixedrange": True}
        layout["xaxis"] |= {"range": [0, max(trace["x"][-1] for trace in traces)], "ticksuffix": " ms"}
        layout["xaxis"]["title"] = {"text": "since the forward's first allocation", "standoff": 8}
    else:
        layout["yaxis"] |= _bytes_axis(floor, highest, scale)
        layout["xaxis"] |= {"range": [0, 100], "ticksuffix": " %"}
        layout["xaxis"]["title"] = {"text": "of the backward's steps", "standoff": 8}
    if forward and not clock:
        shares = range(0, 101, 20)
        layout["xaxis"] |= {
            "range": [-_FORWARD, 100],
            "ticksuffix": "",
            "tickvals": [-_FORWARD / 2, *shares],
            "ticktext": ["forward", *(f"{share} %" for share in shares)],
        }
        line = {"color": colours["line2"], "width": 1}  # at the start of the backward
        layout["shapes"] = [
            {"type": "line", "xref": "x", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        ]
    return {"data": traces, "layout": layout}


def _points(row: StudiedRule) -> Iterator[tuple[float, int, str]]:
    """Yield points of a curve: percent of the backward, the level, and a description of the time.

    If there are many steps, each point is the highest of several.
    """
    peaks = row.levels.peaks
    for first, highest in _highest_steps(peaks):
        yield 100 * first / len(peaks), peaks[highest], f"step {highest + 1:,} of {len(peaks):,}"
    yield 100.0, row.levels.end_bytes, "at the end"


def _over_steps(row: StudiedRule) -> Iterator[tuple[float, int, str]]:
    """Yield the points of `_points`, preceded by the forward's, which have negative positions."""
    yield -_FORWARD, 0, _BEFORE
    levels = row.levels.forward
    for first, highest in _highest_steps(levels):
        yield _FORWARD * (first / len(levels) - 1), levels[highest], "in the forward"
    yield from _points(row)


def _over_time(row: StudiedRule) -> Iterator[tuple[float, int, str]]:
    """Yield points of a curve: milliseconds since the first allocation, the level, and a description of the time."""
    levels, ns = [*row.levels.forward, *row.levels.peaks], [0, *row.levels.ns]
    steps = len(row.levels.forward)
    yield 0.0, 0, _BEFORE
    for first, highest in _highest_steps(levels):
        when = "in the forward" if highest < steps else f"step {highest - steps + 1:,} of {len(levels) - steps:,}"
        yield ns[first] / 1e6, levels[highest], when
    yield ns[-1] / 1e6, row.levels.end_bytes, "at the end"


def _highest_steps(levels: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the highest step of each point."""
    per_point = -(-len(levels) // _MOST_POINTS)
    for first in range(0, len(levels), per_point or 1):
        yield first, max(range(first, min(first + per_point, len(levels))), key=levels.__getitem__)


def _line(row: StudiedRule, colours: Colours) -> dict[str, Any]:
    """Return the style of a row's line. Lower lines are wider, so that equal lines are all visible."""
    if row.kind == "PyTorch":
        return {"color": colours["line2"]} | ({"width": 6} if row.graph == "freed" else {"width": 4, "dash": "dot"})
    if row.kind == "HIPS":
        return {"color": colours["held"], "width": 1.8, "dash": "dashdot"}
    if row.rule is None:
        return {"color": colours["ink3"], "width": 1.2, "dash": "dot" if row.name == FUSED else "solid"}
    return {
        "color": colours[_COLOURS[row.rule.accumulate]],
        "width": (1.4 if row.rule.keeps else 2.2) - (0.6 if row.graph == "kept" else 0),
        "dash": _DASHES[row.graph, row.rule.keeps],
    }


def _bytes_axis(low: float, high: float, scale: int) -> dict[str, Any]:
    """Return a logarithmic axis in one unit, with ticks at 1, 2 and 5 times each power of ten."""
    low, high = low / 1024**scale, 1.2 * high / 1024**scale
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": shown,
        "ticktext": [f"{tick:,g} {unit_name(scale)}" for tick in shown],
        "fixedrange": True,
    }
