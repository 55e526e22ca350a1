"""Figure of a whole training step's memory over time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...engine.memory.lifetimes import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES
from ...engine.training.fits import Fit
from ...engine.training.step import TrainingStep
from ...engine.training.step_timeline import StepTimeline
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import size_text, unit_name, unit_of
from .notebook_figure import figure_of
from .plotly_data import Drawing
from .theme import Colours, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 340
_SINCE = "milliseconds since the step began"
_IN_ORDER = "allocations and frees, in order"
_LEAST_SHARE = 0.06  # of the step; shorter phases are not labelled
_COLOURS = {
    PARAMETERS: "param",
    BUFFERS: "unknown",
    STATE: "state",
    GRADIENTS: "pgrad",
    BATCH: "other",
    ACTIVATIONS: "saved",
    TEMPORARIES: "work",
}
"""Colours by category, in stacking order from the bottom."""


def step_figure(step: TrainingStep | Fit, theme: GraphTheme = "auto") -> go.Figure:
    """Draw the step's memory over time, stacked by category, with its phases."""
    return figure_of(step_drawing(step.timeline, colours_of(theme)))


def step_drawing(timeline: StepTimeline, colours: Colours) -> Drawing:
    """Return the data of `step_figure`."""
    scale = unit_of(timeline.peak_bytes)
    is_timed = bool(timeline.elapsed_ns)
    times = [0.0, *(ns / 1e6 for ns in timeline.event_ns), timeline.elapsed_ns / 1e6]
    if not is_timed:
        times = [float(event) for event in range(len(timeline.events) + 2)]
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
    layout["xaxis"] = axis | {"title": {"text": _SINCE if is_timed else _IN_ORDER}, "range": [0, times[-1]]}
    highest = 1.05 * timeline.peak_bytes / 1024**scale
    layout["yaxis"] = axis | {"ticksuffix": f" {unit_name(scale)}", "range": [0, highest]}
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom", "font": {"color": colours["ink2"]}}
    layout["shapes"], layout["annotations"] = _phases(timeline, colours)
    return {"data": traces, "layout": layout}


def _phases(timeline: StepTimeline, colours: Colours) -> tuple[list[Drawing], list[Drawing]]:
    """Return a line at the start of each phase, and the names of phases that are long enough."""
    if timeline.elapsed_ns:
        starts, end_of_step = [phase.start_ns / 1e6 for phase in timeline.phases], timeline.elapsed_ns / 1e6
    else:
        starts, end_of_step = [float(phase.event) for phase in timeline.phases], len(timeline.events) + 1.0
    phases = zip(timeline.phases, pairwise([*starts, end_of_step]), strict=True)
    lines, names = [], []
    for name, (at, end) in ((phase.name, span) for phase, span in phases):
        line = {"color": colours["line2"], "width": 1}
        lines.append({"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line})
        if end - at >= _LEAST_SHARE * end_of_step:
            font = {"color": colours["ink2"], "size": 11}
            text = {"text": name, "showarrow": False, "font": font, "yref": "paper"}
            names.append(text | {"x": (at + end) / 2, "y": 1, "yanchor": "bottom"})
    return lines, names
