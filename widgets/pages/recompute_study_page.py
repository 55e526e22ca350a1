"""Studies of recomputation as a table for notebooks, a figure, and one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.studies.recompute_study import (
    BELOW,
    BLOCKS,
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
from .figure_page import studies_page
from .notebook_figure import figure_of
from .plotly_data import Drawing, escaped
from .report_html import cells_html
from .theme import Colours, colours_of, figure_style

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 320
_TOP, _BOTTOM = 16, 46  # margins, pixels
_NAMES = 204  # pixels to the right of the plot, for the names of the points
_NAME = 17  # pixels of one
_MARGIN = 0.12  # of the axes, around the points
_LEAST = 20.0  # percent that the upright axis has: less is no difference to be drawn as one
_COLOURS = {
    NOTHING: "ink3",
    BLOCKS: "saved",
    SELECTIVE: "held",
    COMPILED: "pgrad",
    WITHIN: "accent",
    BELOW: "accent",
    HALF: "accent",
}
_SYMBOLS = {WITHIN: ("circle-open", "○"), BELOW: ("circle", "●"), HALF: ("circle", "●")}
_DIAMOND = ("diamond", "◆")
_RIGHT = ("peak", "change", "predicted", "time", "over nothing", "predicted time")
_WORDS = {
    BLOCKS: "torch.utils.checkpoint(use_reentrant=False) around each block of the model",
    SELECTIVE: "the same with create_selective_checkpoint_contexts: products, convolutions and attention are saved",
    COMPILED: "torch.compile with torch._functorch.config.activation_memory_budget = 0.5",
    WITHIN: "the lowest peak that this much more time pays for",
    BELOW: "at the lowest price a peak 2 % below that of checkpoints per block",
    HALF: "at the lowest price half of the peak, where no block repeats",
    "peak": "the highest level of forward and backward: all bytes asked for since just before, and not yet freed",
    "predicted": "the peak of the backward by the plan, and how far it is off what was measured",
    "time": "the median of whole steps, forward and backward, with recording and replays in them",
    "over nothing": "the median of each round's own ratio; in the figure, the lines to either side of a point are the "
    "middle half of them",
    "predicted time": "the same ratio by the plan",
    "gradients": "beside those without anything, and what the forward writes: running statistics",
}


def page_html(studies: Sequence[RecomputeStudy], title: str) -> str:
    """The page."""
    return studies_page(title, studies, study_html, study_drawing, _WORDS)


def study_html(study: RecomputeStudy) -> str:
    """The rows of a study and what they say. It brings its own style."""
    highest = max(row.peak_bytes for row in study.rows) or 1
    bars = [100 * row.peak_bytes / highest for row in study.rows]
    return cells_html(study.cells, study.sentences, _RIGHT, bars)


def study_figure(study: RecomputeStudy, theme: GraphTheme = "auto") -> go.Figure:
    """See `study_drawing`."""
    return figure_of(study_drawing(study, colours_of(theme)))


def study_drawing(study: RecomputeStudy, colours: Colours) -> Drawing:
    """Each way as a point: time to the right, peak upwards, so that what is better is below and to the left.

    The whiskers are the middle half of the rounds. The names are in a column of their own, each with its point's mark
    and a line to it, so that they can be read where points are near each other.
    """
    times = [row.time_ratio.middle for row in study.rows]
    peaks = [100 * study.ratio(row.name) for row in study.rows]
    across, up = _around(times, _MARGIN), _around(peaks, _LEAST)
    name_at = dict(zip((row.name for row in study.rows), _spread(peaks, up), strict=True))
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
        "xaxis": _axis(colours, "time of a step over that of nothing") | {"range": across, "ticksuffix": " ×"},
        "yaxis": _axis(colours, "of the peak of nothing") | {"range": up, "ticksuffix": " %"},
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
    """The mark of a point, its name, and the line from there to the point."""
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


def _around(values: Sequence[float], least: float) -> list[float]:
    """From below the least to above the most of them, but never below 0; at least as wide as this."""
    low, high = min(values), max(values)
    more = max(_MARGIN * (high - low), (least - (high - low)) / 2)
    return [max(0.0, low - more), high + more]


def _spread(values: Sequence[float], axis: Sequence[float]) -> list[float]:
    """Where names of points at these heights go, none upon another: as near as that to their own, and in their order.

    They are put from the top down, and what then hangs below the axis is pushed up again.
    """
    low, high = axis
    apart = _NAME * (high - low) / (_HEIGHT - _TOP - _BOTTOM)
    order = sorted(range(len(values)), key=lambda place: -values[place])
    found = [0.0] * len(values)
    ceiling = high - apart / 2
    for place in order:
        found[place] = min(values[place], ceiling)
        ceiling = found[place] - apart
    floor = low + apart / 2
    for place in reversed(order):
        found[place] = max(found[place], floor)
        floor = found[place] + apart
    return found


def _axis(colours: Colours, title: str) -> dict[str, Any]:
    return {
        "showline": False,
        "zeroline": False,
        "gridcolor": colours["line"],
        "tickfont": {"color": colours["ink3"]},
        "title": {"text": title, "standoff": 8},
    }
