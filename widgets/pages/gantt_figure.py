"""Gantt charts drawn with plotly: the tasks of each device over time, under one or more policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.studies.gantt import Bar, Gantt, Idle
from ...inspector.renderers import GraphTheme
from ...inspector.text.durations import time_text, time_unit
from ...inspector.text.sizes_and_counts import counted
from .notebook_figure import figure_of
from .plotly_data import Drawing, cut, escaped, wrapped
from .theme import Colours, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_BARS = 1200  # per row; about one per pixel on a screen
_DEVICES = ("saved", "pgrad", "held", "buffer", "work", "other")  # colours of the devices, in order
_TOP, _BOTTOM, _RIGHT = 56, 46, 78  # margins, pixels
_ROW, _GAP = 34, 38  # pixels: height of a device's row, and space for the policy's name above its rows
_NAMED = 0.12  # share of the makespan; longer idle times are labelled
_IDLE, _READY = "idle", "ready but not yet run: the idle device waits for this task"
_EXPLAINED = (_IDLE, _READY)  # listed once in the legend
_WAITS = -0.43  # in rows: vertical offset of the line for a waiting task


def gantt_figure(rows: Sequence[Gantt], theme: GraphTheme = "auto", lower_bound_ns: int | None = None) -> go.Figure:
    """Return `gantt_drawing` as a plotly figure."""
    return figure_of(gantt_drawing(rows, colours_of(theme), lower_bound_ns))


def gantt_drawing(rows: Sequence[Gantt], colours: Colours, lower_bound_ns: int | None = None) -> Drawing:
    """Draw the policies below each other: a row per device, a bar per task, and a line at the end of each backward.

    Idle times are hatched. If there are very many tasks, a bar stands for several successive ones. The thin line above
    a row shows the task that causes the longest idle time, while it waits in that row's queue.
    """
    last = max(row.makespan_ns for row in rows)
    scale, unit = time_unit(last)
    devices = list(dict.fromkeys(device for row in rows for device in row.rows))
    plot = len(rows) * (_GAP + _ROW * len(devices))
    traces: list[Drawing] = []
    shapes: list[Drawing] = []
    notes: list[Drawing] = []
    axes: dict[str, Any] = {}
    for number, gantt in enumerate(rows):
        top = 1 - (number * (_GAP + _ROW * len(devices)) + _GAP) / plot
        bottom = top - _ROW * len(devices) / plot
        axis = f"y{number + 1 if number else ''}"
        axes[axis.replace("y", "yaxis")] = {
            "domain": [max(bottom, 0), top],
            "range": [len(devices) - 0.5, -0.5],
            "tickvals": list(range(len(devices))),
            "ticktext": [escaped(cut(device, 12)) for device in devices],
            "ticklabelstandoff": 5,
            "tickfont": {"color": colours["ink2"]},
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        }
        traces += _tasks(gantt, devices, axis, scale, colours)
        traces += _idle(gantt, devices, axis, scale, colours)
        traces += _waiting(gantt, devices, axis, scale, colours)
        at = gantt.makespan_ns / scale
        shapes.append(_line(at, bottom, top, {"color": colours["ink"], "width": 2}))
        notes += _labels(gantt, at, top, (top + bottom) / 2, colours)
    if lower_bound_ns is not None:
        bound = {"color": colours["ink2"], "width": 1.2, "dash": "dot"}
        shapes.append(_line(lower_bound_ns / scale, 0, 1, bound))
        label = f"lower bound: no order ends before {time_text(lower_bound_ns)}"
        traces.append({"type": "scatter", "mode": "lines", "name": label, "x": [None], "y": [None], "line": bound})
    for name in _EXPLAINED:
        drawn = [trace for trace in traces if trace.get("name") == name and trace["x"]]
        for trace in drawn[:1]:
            trace["showlegend"] = True
    layout = _layout(last / scale, unit, plot, len(rows), colours) | axes | {"shapes": shapes, "annotations": notes}
    return {"data": traces, "layout": layout}


def _layout(end: float, unit: str, plot: int, rows: int, colours: Colours) -> dict[str, Any]:
    """Return the layout. `plot` is the plot's height in pixels, `end` the end of the time axis."""
    return {
        "height": _TOP + plot + _BOTTOM,
        "margin": {"l": 84, "r": _RIGHT, "t": _TOP, "b": _BOTTOM},
        **figure_style(colours),
        "barmode": "overlay",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", **hover_label(colours)},
        "xaxis": {
            "range": [0, end or 1],
            "title": {"text": f"{unit} since the start of the backward", "standoff": 8},
            "zeroline": False,
            "gridcolor": colours["line"],
            "tickfont": {"color": colours["ink3"]},
            "anchor": f"y{rows if rows > 1 else ''}",
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "font": {"color": colours["ink2"]},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "showlegend": True,
    }


def _tasks(gantt: Gantt, devices: Sequence[str], axis: str, scale: float, colours: Colours) -> Iterator[Drawing]:
    for device, row in gantt.rows.items():
        parts = list(_merge_short_bars(row, gantt.makespan_ns))
        place = devices.index(device)
        yield {
            "type": "bar",
            "orientation": "h",
            "name": f"{escaped(gantt.policy)}, {escaped(device)}",
            "showlegend": False,
            "yaxis": axis,
            "base": [part[0].start_ns / scale for part in parts],
            "x": [(part[-1].end_ns - part[0].start_ns) / scale for part in parts],
            "y": [place] * len(parts),
            "width": 0.62,
            "customdata": [_hover_text(gantt, part) for part in parts],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {
                "color": colours[_DEVICES[place % len(_DEVICES)]],
                "line": {"color": colours["panel"], "width": 0.5 if len(parts) < 250 else 0},
            },
        }


def _merge_short_bars(row: Sequence[Bar], makespan_ns: int) -> Iterator[list[Bar]]:
    """Yield the bars in groups. If there are very many, successive bars too short to be visible form one group."""
    shortest = makespan_ns / _MOST_BARS if len(row) > _MOST_BARS else 0
    part: list[Bar] = []
    for bar in row:
        if part and (bar.start_ns > part[-1].end_ns or bar.end_ns - part[0].start_ns > shortest):
            yield part
            part = []
        part.append(bar)
    if part:
        yield part


def _hover_text(gantt: Gantt, part: Sequence[Bar]) -> str:
    first, last = part[0], part[-1]
    span = f"{time_text(last.end_ns - first.start_ns)}, starting at {time_text(first.start_ns)}"
    if len(part) > 1:
        between = f"{gantt.graph.describe(first.task)} to {gantt.graph.describe(last.task)}"
        return f"<b>{counted(len(part), 'task')}</b><br>{wrapped(between)}<br>{span}"
    waited = first.start_ns - first.ready_ns
    ready = f"<br>ready {time_text(waited)} earlier" if waited else "<br>started without waiting"
    return f"<b>{wrapped(gantt.graph.describe(first.task))}</b><br>{span}{ready}"


def _idle(gantt: Gantt, devices: Sequence[str], axis: str, scale: float, colours: Colours) -> Iterator[Drawing]:
    # Shorter idle times would be narrower than a pixel.
    seen = gantt.makespan_ns / _MOST_BARS
    found = [idle for row in gantt.idle.values() for idle in row if idle.elapsed_ns > seen]
    long = _NAMED * gantt.makespan_ns
    yield {
        "type": "bar",
        "orientation": "h",
        "name": _IDLE,
        "showlegend": False,
        "yaxis": axis,
        "base": [idle.start_ns / scale for idle in found],
        "x": [idle.elapsed_ns / scale for idle in found],
        "y": [devices.index(idle.device) for idle in found],
        "width": 0.62,
        "customdata": [wrapped(why_idle(gantt, idle)) for idle in found],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "color": colours["panel"],
            "line": {"color": colours["line2"], "width": 0.5},
            "pattern": {"shape": "/", "size": 6, "solidity": 0.2, "fgcolor": colours["line2"], "fillmode": "replace"},
        },
    }
    yield {
        "type": "scatter",
        "mode": "text",
        "name": "idle time",
        "showlegend": False,
        "hoverinfo": "skip",
        "yaxis": axis,
        "x": [(idle.start_ns + idle.end_ns) / 2 / scale for idle in found if idle.elapsed_ns > long],
        "y": [devices.index(idle.device) for idle in found if idle.elapsed_ns > long],
        "text": [f"<b>{time_text(idle.elapsed_ns)}</b>" for idle in found if idle.elapsed_ns > long],
        "textfont": {"color": colours["ink"], "size": 11},
    }


def why_idle(gantt: Gantt, idle: Idle) -> str:
    """Return a sentence that explains why a device is idle."""
    idle_text = f"{idle.device} is idle for {time_text(idle.elapsed_ns)}"
    if idle.before is None:
        return f"{idle_text}: all its tasks have run"
    describe = gantt.graph.in_order(gantt.order).describe
    before = describe(idle.before)
    if idle.blocker is None:
        return f"{idle_text} before {before}, whose inputs take that long to compute"
    waits = f"waited {time_text(idle.waited_ns)} in the queue of {gantt.device_of[idle.blocker]}"
    if idle.blocker == idle.before:
        return f"{idle_text} before {before}, which {waits}"
    return f"{idle_text} before {before}, which depends on {describe(idle.blocker)}, which {waits}"


def _waiting(gantt: Gantt, devices: Sequence[str], axis: str, scale: float, colours: Colours) -> Iterator[Drawing]:
    """Yield the line of the task that causes the longest idle time, from when it is ready to when it runs."""
    idle = gantt.starved
    if idle is None or idle.blocker is None:
        return
    bar = gantt.bars[idle.blocker]
    yield {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _READY,
        "showlegend": False,
        "yaxis": axis,
        "x": [bar.ready_ns / scale, bar.start_ns / scale],
        "y": [devices.index(gantt.device_of[idle.blocker]) + _WAITS] * 2,
        "customdata": [wrapped(why_idle(gantt, idle))] * 2,
        "hovertemplate": "%{customdata}<extra></extra>",
        "line": {"color": colours["accent"], "width": 2},
        "marker": {"symbol": "line-ns-open", "size": 8, "color": colours["accent"], "line": {"width": 2}},
    }


def _line(at: float, bottom: float, top: float, line: dict[str, Any]) -> Drawing:
    """Return a vertical line through the rows of one policy, or of all."""
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": bottom, "y1": top, "line": line}


def _labels(gantt: Gantt, at: float, top: float, middle: float, colours: Colours) -> Iterator[Drawing]:
    """Yield the policy's name above its rows, and the makespan beside its line."""
    yield _note(f"<b>{escaped(cut(gantt.policy, 40))}</b>", 0, top, colours["ink"]) | {
        "xref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 2,
        "font": {"size": 12, "color": colours["ink"]},
    }
    yield _note(f"<b>{time_text(gantt.makespan_ns)}</b>", at, middle, colours["ink"]) | {
        "xanchor": "left",
        "yanchor": "middle",
        "xshift": 6,
        "font": {"size": 12, "color": colours["ink"]},
    }


def _note(text: str, x: float, y: float, colour: str) -> Drawing:
    return {
        "xref": "x",
        "x": x,
        "yref": "paper",
        "y": y,
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": colour},
    }
