"""Figures of a whole training step's memory over time: its levels by category, and the lifetimes of its blocks."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...engine.memory.categories import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES
from ...engine.training.fits import Fit
from ...engine.training.step import TrainingStep, place_of
from ...engine.training.step_memory import StepTimeline
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import counted, size_text, unit_name, unit_of
from .memory_figures import bars_layout
from .notebook_figure import figure_of
from .plotly_data import LINE, Drawing, cut, escaped
from .theme import Colours, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HEIGHT = 340
_MOST_BARS = 30
_PHASE_NAMES = 18  # pixels between the bars and the legend
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


def step_lifetimes_figure(fit: Fit, theme: GraphTheme = "auto") -> go.Figure:
    """Draw the lifetimes of a predicted step's blocks as bars, with its phases."""
    return figure_of(step_lifetimes_drawing(fit.timeline, colours_of(theme)))


def step_drawing(timeline: StepTimeline, colours: Colours, points: int | None = None) -> Drawing:
    """Return the data of `step_figure`. With more events than `points`, each point is the highest of several events."""
    scale = unit_of(timeline.peak_bytes)
    is_timed = bool(timeline.elapsed_ns)
    shown = _highest_events(timeline, points)
    times = [float(event) for event in shown]
    if is_timed:
        times = [timeline.event_ns[event - 1] / 1e6 if event else 0.0 for event in shown]
    times.append(_end_of(timeline))
    traces: list[dict[str, Any]] = []
    for category, colour in _COLOURS.items():
        if (levels := timeline.category_levels.get(category)) is None:
            continue
        drawn = [*(levels[event] for event in shown), levels[-1]]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": category,
                "stackgroup": "levels",
                "x": times,
                "y": [level / 1024**scale for level in drawn],
                "customdata": [size_text(level) for level in drawn],
                "hovertemplate": f"{category}  %{{customdata}}<extra></extra>",
                "line": {"shape": "hv", "width": 0, "color": colours[colour]},
                "fillcolor": colours[colour],
            }
        )
    layout = figure_style(colours)
    layout |= {"height": _HEIGHT, "hovermode": "x unified", "hoverlabel": hover_label(colours)}
    layout["margin"] = {"l": 64, "r": 24, "t": 64, "b": 46}
    axis = {"gridcolor": colours["line"], "linecolor": colours["line2"], "zeroline": False}
    axis["tickfont"] = {"color": colours["ink3"]}
    layout["xaxis"] = axis | {"title": {"text": _SINCE if is_timed else _IN_ORDER}, "range": [0, times[-1]]}
    highest = 1.05 * timeline.peak_bytes / 1024**scale
    layout["yaxis"] = axis | {"ticksuffix": f" {unit_name(scale)}", "range": [0, highest]}
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom", "font": {"color": colours["ink2"]}}
    layout["shapes"], layout["annotations"] = _phases(timeline, colours)
    return {"data": traces, "layout": layout}


def _highest_events(timeline: StepTimeline, points: int | None) -> list[int]:
    """Return the indices in `levels` to draw: all, or the highest one of each of `points` runs of equal length."""
    count = len(timeline.levels)
    size = 1 if points is None else -(-count // points)
    levels = timeline.levels
    return [max(range(at, min(at + size, count)), key=levels.__getitem__) for at in range(0, count, size)]


def _end_of(timeline: StepTimeline) -> float:
    """Return the end of the step on the axis: milliseconds if measured, else events."""
    return timeline.elapsed_ns / 1e6 if timeline.elapsed_ns else len(timeline.events) + 1.0


def step_lifetimes_drawing(timeline: StepTimeline, colours: Colours) -> Drawing:
    """Return the data of `step_lifetimes_figure`.

    The x axis counts events. First come the blocks that are alive during the whole step, one bar for each category;
    then the largest of the others by bytes × time.
    """
    end = _end_of(timeline)
    deaths = [timeline.deaths.get(number, int(end) - 1) for number in range(len(timeline))]
    # Bars match the curve: `levels[event + 1]` is the level after an event, so its change is drawn at event + 1.
    spans = [(born + 1, died - born) for born, died in zip(timeline.births, deaths, strict=True)]
    standing: dict[str, list[int]] = {}
    others = []
    for number, kind in enumerate(timeline.kinds):
        if timeline.births[number] < 0 and number not in timeline.deaths:
            standing.setdefault(kind, []).append(number)
        else:
            others.append(number)
    largest = heapq.nlargest(_MOST_BARS, others, key=lambda each: timeline.nbytes[each] * spans[each][1])
    groups = [numbers for kind in _COLOURS if (numbers := standing.get(kind))]
    rows = [(f"{timeline.kinds[each[0]]}, {counted(len(each), 'block')}", each) for each in groups]
    rows += [(timeline.names[each], [each]) for each in largest]
    sizes = [sum(timeline.nbytes[each] for each in numbers) for _, numbers in rows]
    layout = bars_layout([name for name, _ in rows], sizes, colours)
    rest = f" · +{len(others) - len(largest):,} smaller blocks" if len(others) > len(largest) else ""
    layout["xaxis"] |= {
        "range": [0, end],
        "title": {"text": _IN_ORDER + rest, "standoff": 8},
    }
    lines, names = _phases(timeline, colours)
    layout["shapes"] = lines
    layout["annotations"] += names
    layout["margin"]["t"] += _PHASE_NAMES
    layout["height"] += _PHASE_NAMES
    layout["legend"]["y"] += _PHASE_NAMES / layout["height"]
    traces = []
    for kind, colour in _COLOURS.items():
        of_kind = [row for row, (_, numbers) in enumerate(rows) if timeline.kinds[numbers[0]] == kind]
        if not of_kind:
            continue
        bars = [spans[rows[row][1][0]] for row in of_kind]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": kind,
                "base": [start for start, _ in bars],
                "x": [length for _, length in bars],
                "y": of_kind,
                "width": 0.62,
                "customdata": [
                    f"<b>{escaped(cut(rows[row][0], LINE))}</b><br>{size_text(sizes[row])} {kind}"
                    f"<br>{_life_text(timeline, rows[row][1][0])}"
                    for row in of_kind
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {"color": colours[colour], "line": {"width": 0}},
            }
        )
    return {"data": traces, "layout": layout}


def _life_text(timeline: StepTimeline, number: int) -> str:
    """Return the phases in which a block is allocated and freed: `allocated in the forward, freed in the backward`."""
    born, died = timeline.births[number], timeline.deaths.get(number)
    allocated = "alive before the step" if born < 0 else f"allocated in {place_of(timeline.phase_at(born).name)}"
    freed = "alive after it" if died is None else f"freed in {place_of(timeline.phase_at(died).name)}"
    return f"{allocated}, {freed}"


def _phases(timeline: StepTimeline, colours: Colours) -> tuple[list[Drawing], list[Drawing]]:
    """Return a line at the start of each phase, and the names of phases that are long enough."""
    if timeline.elapsed_ns:
        starts = [phase.start_ns / 1e6 for phase in timeline.phases]
    else:
        starts = [float(phase.event) for phase in timeline.phases]
    end_of_step = _end_of(timeline)
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
