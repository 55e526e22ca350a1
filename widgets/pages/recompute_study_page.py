"""Studies of recomputation as a notebook table, a figure, and one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...engine.studies.recompute_study import (
    BELOW,
    BLOCKS,
    CHEAP,
    COMPILED,
    HALF,
    NOTHING,
    SELECTIVE,
    WITHIN,
    RecomputeStudy,
    StudiedWay,
)
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import size_text
from .notebook_figure import figure_of
from .page_frame import studies_page
from .plotly_data import Drawing, escaped
from .report_html import cells_html
from .theme import Colours, axis_style, colours_of, figure_style

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 320
_TOP, _BOTTOM = 16, 46  # margins, pixels
_NAMES = 204  # width in pixels of the column of names, right of the plot
_NAME = 17  # height in pixels of a name
_MARGIN = 0.12  # margin around the points, as a share of an axis
_LEAST = 20.0  # smallest range of the vertical axis in percent, so that tiny differences look small
_COLOURS = {
    NOTHING: "ink3",
    BLOCKS: "saved",
    SELECTIVE: "held",
    COMPILED: "pgrad",
    CHEAP: "buffer",
    WITHIN: "accent",
    BELOW: "accent",
    HALF: "accent",
}
_SYMBOLS = {WITHIN: ("circle-open", "○"), BELOW: ("circle", "●"), HALF: ("circle", "●")}
_DIAMOND = ("diamond", "◆")
_RIGHT = ("peak", "change", "predicted", "time", "time ratio", "predicted ratio")
_WORDS = {
    BLOCKS: "torch.utils.checkpoint(use_reentrant=False) around each block of the model",
    SELECTIVE: "the same with create_selective_checkpoint_contexts, which saves products, convolutions and attention",
    COMPILED: "torch.compile with torch._functorch.config.activation_memory_budget = 0.5",
    CHEAP: "every result of a cheap operation is recomputed, whatever that saves: MXNet's rule before Echo "
    "(MXNET_BACKWARD_DO_MIRROR=1), which excepts products, batch norms, dropout, concatenation and the loss's softmax",
    WITHIN: "the lowest peak within this share of extra time",
    BELOW: "a peak 2 % below that of checkpoints per block, at the lowest cost",
    HALF: "half of the peak, at the lowest cost; used if no block repeats",
    "peak": "peak memory of forward and backward: bytes requested since just before the step and not yet freed",
    "predicted": "the peak of the backward predicted by the plan, and its error; exact means equal to the byte",
    "time": "the median time of a step, forward and backward, including recording and recomputation",
    "time ratio": "the median over the rounds of the time relative to an unchanged step; whiskers in the figure span "
    "the middle half",
    "predicted ratio": "the time ratio predicted by the plan",
    "gradients": "comparison with an unchanged step, of gradients and of tensors that the forward writes",
}


def page_html(studies: Sequence[RecomputeStudy], title: str) -> str:
    """Return the page."""
    return studies_page(title, studies, study_html, {"": study_drawing}, _WORDS)


def study_html(study: RecomputeStudy) -> str:
    """Return the table and the sentences of a study as HTML with its own style."""
    highest = max(row.peak_bytes for row in study.rows) or 1
    bars = [100 * row.peak_bytes / highest for row in study.rows]
    return cells_html(study.cells, study.sentences, _RIGHT, bars)


def study_figure(study: RecomputeStudy, theme: GraphTheme = "auto") -> go.Figure:
    """Return the figure of a study; see `study_drawing`."""
    return figure_of(study_drawing(study, colours_of(theme)))


def study_drawing(study: RecomputeStudy, colours: Colours) -> Drawing:
    """Return a drawing with a point for each way: time to the right, peak upwards, so better is below and to the left.

    The whiskers span the middle half of the rounds. The names stand in a column, each with the mark of its point and a
    line to it, so that they can be read even if points are close together.
    """
    times = [row.time_ratio.middle for row in study.rows]
    peaks = [100 * study.ratio(row.name) for row in study.rows]
    across, up = _padded_range(times, _MARGIN), _padded_range(peaks, _LEAST)
    name_at = dict(zip((row.name for row in study.rows), _name_heights(peaks, up), strict=True))
    traces: list[Drawing] = []
    names: list[Drawing] = []
    for row, peak in zip(study.rows, peaks, strict=True):
        traces.append(_point(row, peak, colours))
        names += _name(row, peak, across[1], name_at[row.name], colours)
    layout = {
        "height": _HEIGHT,
        "margin": {"l": 70, "r": _NAMES, "t": _TOP, "b": _BOTTOM},
        **figure_style(colours),
        "hovermode": "closest",
        "showlegend": False,
        "annotations": names,
        "xaxis": axis_style(colours, "time relative to an unchanged step") | {"range": across, "ticksuffix": " ×"},
        "yaxis": axis_style(colours, "peak relative to an unchanged step") | {"range": up, "ticksuffix": " %"},
    }
    return {"data": traces, "layout": layout}


def _point(row: StudiedWay, peak: float, colours: Colours) -> Drawing:
    time, colour = row.time_ratio, colours[_COLOURS.get(row.name, "ink")]
    symbol, _ = _SYMBOLS.get(row.name, _DIAMOND)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escaped(row.name),
        "x": [time.middle],
        "y": [peak],
        "hovertemplate": f"<b>{escaped(row.name)}</b>  {size_text(row.peak_bytes)}, {time.middle:.2f} ×<extra></extra>",
        "marker": {
            "color": colour,
            "symbol": symbol,
            "size": 10,
            "line": {"width": 2, "color": colour},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [time.high - time.middle],
            "arrayminus": [time.middle - time.low],
            "thickness": 1,
            "width": 0,
            "color": colours["line2"],
        },
    }


def _name(row: StudiedWay, peak: float, x: float, y: float, colours: Colours) -> Iterator[Drawing]:
    """Yield the mark of a point, its name, and the line from the name to the point."""
    _, mark = _SYMBOLS.get(row.name, _DIAMOND)
    beside = {"x": x, "y": y, "xanchor": "left", "xshift": 2, "showarrow": False}
    yield {"text": mark, "font": {"color": colours[_COLOURS.get(row.name, "ink")]}} | beside
    yield {"text": escaped(row.name), "font": {"color": colours["ink2"]}} | beside | {"xshift": 16}
    yield {
        "text": "",
        "x": row.time_ratio.middle,
        "y": peak,
        "axref": "x",
        "ayref": "y",
        "ax": x,
        "ay": y,
        "showarrow": True,
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": colours["line2"],
        "standoff": 8,
    }


def _padded_range(values: Sequence[float], least: float) -> list[float]:
    """Return an axis range with a margin around the values, at least `least` wide and not below 0."""
    low, high = min(values), max(values)
    more = max(_MARGIN * (high - low), (least - (high - low)) / 2)
    return [max(0.0, low - more), high + more]


def _name_heights(values: Sequence[float], axis: Sequence[float]) -> list[float]:
    """Return heights for the names of points, in order, without overlap and as close to the points as possible.

    Names are placed from the top down; those below the axis are then pushed up.
    """
    low, high = axis
    spacing = _NAME * (high - low) / (_HEIGHT - _TOP - _BOTTOM)
    order = sorted(range(len(values)), key=lambda place: -values[place])
    found = [0.0] * len(values)
    ceiling = high - spacing / 2
    for place in order:
        found[place] = min(values[place], ceiling)
        ceiling = found[place] - spacing
    floor = low + spacing / 2
    for place in reversed(order):
        found[place] = max(found[place], floor)
        floor = found[place] + spacing
    return found
