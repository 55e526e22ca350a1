"""A whole training step as a figure: its memory over time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...engine.memory.lifetimes import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES
from ...engine.training.step import TrainingStep
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import size_text, unit_name, unit_of
from .notebook_figure import figure_of
from .plotly_data import Drawing
from .theme import Colours, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 340
_LEAST_SHARE = 0.06  # of the step, for a phase to be named
_COLOURS = {
    PARAMETERS: "param",
    BUFFERS: "unknown",
    STATE: "state",
    GRADIENTS: "pgrad",
    BATCH: "other",
    ACTIVATIONS: "saved",
    TEMPORARIES: "work",
}
"""Stacked from below in this order."""


def step_figure(step: TrainingStep, theme: GraphTheme = "auto") -> go.Figure:
    """The step's memory over time, stacked by category, with its phases."""
    drawing = step_drawing(step, colours_of(theme))
    return figure_of(drawing)


def step_drawing(step: TrainingStep, colours: Colours) -> Drawing:
    """See `step_figure`."""
    timeline = step.timeline
    scale = unit_of(timeline.peak_bytes)
    times = [0.0, *(ns / 1e6 for ns in timeline.event_ns), timeline.elapsed_ns / 1e6]
    traces: list[dict[str, Any]] = []
    for category, colour in _COLOURS.items():
        if (levels := timeline.category_levels.get(category)) is None:
            continue
        shown = [*levels, levels[-1]]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": category,
                "stackgroup": "levels",
                "x": times,
                "y": [level / 1024**scale for level in shown],
                "customdata": [size_text(level) for level in shown],
                "hovertemplate": f"{category}  %{{customdata}}<extra></extra>",
                "line": {"shape": "hv", "width": 0, "color": colours[colour]},
                "fillcolor": colours[colour],
            }
        )
    layout = figure_style(colours)
    layout |= {"height": _HEIGHT, "hovermode": "x unified", "hoverlabel": hover_label(colours)}
    layout["margin"] = {"l": 64, "r": 24, "t": 64, "b": 46}
    axis = {"gridcolor": colours["line"], "linecolor": colours["line2"], "zeroline": False}
    layout["xaxis"] = axis | {"title": {"text": "milliseconds since the step began"}, "range": [0, times[-1]]}
    highest = 1.05 * timeline.peak_bytes / 1024**scale
    layout["yaxis"] = axis | {"ticksuffix": f" {unit_name(scale)}", "range": [0, highest]}
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom", "font": {"color": colours["ink2"]}}
    layout["shapes"], layout["annotations"] = _phases(step, colours)
    return {"data": traces, "layout": layout}


def _phases(step: TrainingStep, colours: Colours) -> tuple[list[Drawing], list[Drawing]]:
    """A line where each phase begins, and its name where there is room."""
    timeline = step.timeline
    starts = [(phase.start_ns, phase.name) for phase in timeline.phases]
    lines, names = [], []
    for (start, name), (end, _) in pairwise([*starts, (timeline.elapsed_ns, "")]):
        at = start / 1e6
        line = {"color": colours["line2"], "width": 1}
        lines.append({"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line})
        if end - start >= _LEAST_SHARE * timeline.elapsed_ns:
            font = {"color": colours["ink2"], "size": 11}
            text = {"text": name, "showarrow": False, "font": font, "yref": "paper"}
            names.append(text | {"x": (start + end) / 2e6, "y": 1, "yanchor": "bottom"})
    return lines, names
