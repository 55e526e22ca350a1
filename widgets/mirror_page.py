"""Studies of mirroring as a table for notebooks, a figure, and one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ..engine.mirror_study import BELOW, BLOCKS, COMPILED, NOTHING, SELECTIVE, WITHIN, MirrorStudy, Theme
from ..engine.sizes import size_text
from .figure_page import studies_page
from .memory_figures import Drawing, escaped
from .report_html import cells_html
from .theme import DARK, FONT, LATER, LIGHT, Colours

_HEIGHT = 320
_MARGIN = 0.12  # of the axes, around the points
_COLOURS = {NOTHING: "ink3", BLOCKS: "saved", SELECTIVE: "held", COMPILED: "pgrad", WITHIN: "accent", BELOW: "accent"}
_SYMBOLS = {WITHIN: "circle-open", BELOW: "circle"}
_RIGHT = ("peak", "change", "predicted", "time", "over nothing", "predicted time")
_WORDS = {
    BLOCKS: "torch.utils.checkpoint(use_reentrant=False) around each block of the model",
    SELECTIVE: "the same with create_selective_checkpoint_contexts: products, convolutions and attention are saved",
    COMPILED: "torch.compile with torch._functorch.config.activation_memory_budget = 0.5",
    WITHIN: "the lowest peak that this much more time pays for",
    BELOW: "at the lowest price a peak 2 % below that of checkpoints per block; without blocks, half of the peak",
    "peak": "the highest level of forward and backward: all bytes asked for since just before, and not yet freed",
    "predicted": "the peak of the backward by the plan, and how far it is off what was measured",
    "time": "the median of whole steps, forward and backward, with recording and replays in them",
    "over nothing": "the median of each round's own ratio",
    "predicted time": "the same ratio by the plan",
    "gradients": "beside those without anything, and what the forward writes: running statistics",
}


def save_page(studies: Sequence[MirrorStudy], path: Path, title: str) -> Path:
    """Writes one page with the table and the figure of each study, which works offline. Needs plotly."""
    path.write_text(page_html(studies, title), encoding="utf-8")
    return path


def page_html(studies: Sequence[MirrorStudy], title: str) -> str:
    """The page."""
    shown = [
        (
            study.title,
            f"{study.workload.title} · {study.workload.source}",
            study_html(study),
            study_drawing(study, LATER),
        )
        for study in studies
    ]
    return studies_page(title, f"Measured on {studies[0].machine}.", shown, _WORDS)


def study_html(study: MirrorStudy) -> str:
    """The rows of a study and what they say. It brings its own style."""
    highest = max(row.peak_bytes for row in study.rows) or 1
    bars = [100 * row.peak_bytes / highest for row in study.rows]
    return cells_html(study.cells, study.sentences, _RIGHT, bars)


def study_figure(study: MirrorStudy, theme: Theme = "light") -> go.Figure:
    """See `study_drawing`."""
    return go.Figure(study_drawing(study, {"light": LIGHT, "dark": DARK}[theme]))


def study_drawing(study: MirrorStudy, colours: Colours) -> Drawing:
    """Each way as a point: time to the right, peak upwards, so that what is better is below and to the left.

    The whiskers are the middle half of the rounds.
    """
    times, peaks = [], []
    traces = []
    for row in study.rows:
        time, peak = row.time_ratio, 100 * study.ratio(row.name)
        times.append(time.middle)
        peaks.append(peak)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": escaped(row.name),
                "x": [time.middle],
                "y": [peak],
                "text": [escaped(row.name)],
                "textposition": "middle right",
                "textfont": {"color": colours["ink2"]},
                "hovertemplate": f"<b>{escaped(row.name)}</b>  {size_text(row.peak_bytes)}, {time.middle:.2f} ×"
                "<extra></extra>",
                "marker": {
                    "color": colours[_COLOURS.get(row.name, "ink")],
                    "symbol": _SYMBOLS.get(row.name, "diamond"),
                    "size": 10,
                    "line": {"width": 2},
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
        )
    layout = {
        "height": _HEIGHT,
        "margin": {"l": 70, "r": 12, "t": 16, "b": 46},
        "font": {"family": FONT, "size": 11, "color": colours["ink2"]},
        "paper_bgcolor": colours["panel"],
        "plot_bgcolor": colours["panel"],
        "hovermode": "closest",
        "showlegend": False,
        "xaxis": _axis(colours, "time of a step over that of nothing")
        | {"range": _around(times, right=0.35), "ticksuffix": " ×"},
        "yaxis": _axis(colours, "of the peak of nothing")
        | {"range": [0, 100 * _MARGIN + max(peaks)], "ticksuffix": " %"},
    }
    return {"data": traces, "layout": layout}


def _around(values: Sequence[float], right: float) -> list[float]:
    """From below the least to above the most, with room for names to the right of the last point."""
    low, high = min(values), max(values)
    width = max(high - low, _MARGIN)
    return [low - _MARGIN * width, high + right * width]


def _axis(colours: Colours, title: str) -> dict[str, Any]:
    return {
        "showline": False,
        "zeroline": False,
        "gridcolor": colours["line"],
        "tickfont": {"color": colours["ink3"]},
        "title": {"text": title, "standoff": 8},
    }
