"""Order studies as a notebook table, a figure, and one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from ...engine.studies.studied_orders import Block, Cell, OrderStudy, StudiedWorkload, ratio_text
from ...inspector.renderers import GraphTheme
from .figure_html import Figures
from .gantt_figure import gantt_drawing
from .notebook_figure import figure_of
from .page_frame import page_frame
from .plotly_data import Drawing, cut, escaped
from .report_html import STYLE
from .theme import LATER, LIGHT, Colours, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLOURS = ("ink", "accent", "saved", "pgrad", "held", "work", "buffer", "other")  # of the policies, in order
_PATTERNS = ("", "/", "x")  # for more policies than colours
_SIGNS = {
    1: f"color:var(--accent,{LIGHT['accent']})",
    0: "opacity:.72",
    -1: f"color:var(--saved,{LIGHT['saved']})",
}
_BAR = 17  # pixels per bar, including the space to the next
_GAP = 16  # between two workloads
_TOP, _BOTTOM = 62, 34
_FAR = 3.0  # from this ratio the axis is logarithmic, so that small ratios stay visible
_CHARACTERS = 18  # length limit of a workload's name beside its bars
_TABLE = """
.ts-report tbody tr.more:nth-child(n){border-top:0}
.ts-report tr.more td{padding-top:0;padding-bottom:2px}
.ts-report tr.more:last-child td{padding-bottom:8px}
"""
_STYLE = """
.said p{margin:0 0 4px;color:var(--ink2);max-width:120ch}
"""


def page_html(study: OrderStudy, title: str) -> str:
    """Return the page of a study."""
    figures = Figures()
    parts = [f"<section>{study_html(study)}</section>"]
    if study.others and study.rows:
        figure = figures.html("ratios", f"Peak and time against {study.reference}", study_drawing(study, LATER))
        parts.append(
            f"<section><h2>Compared with {escape(study.reference)}<span>right of the line is more, left is less"
            f"</span></h2>{figure}</section>"
        )
    for row in study.rows:
        if row.makespans is not None:
            drawing = gantt_drawing(row.makespans.rows, LATER, row.makespans.lower_bound_ns)
            figure = figures.html(f"makespan {row.name}", f"{row.name} on {row.devices} over time", drawing)
            parts.append(
                f"<section><h2>{escape(row.name)} on {escape(row.devices)}<span>simulated with measured times of its "
                f"tasks</span></h2>{figure}</section>"
            )
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in study.how_measured)
    parts.append(f'<section class="said"><h2>How it was measured</h2>{sentences}</section>')
    return page_frame(title, f"Measured on {study.machine}.", "\n".join(parts), figures, _STYLE)


def study_html(study: OrderStudy) -> str:
    """Return a study's sentences and table as HTML, including its style sheet."""
    headings, blocks = study.blocks
    heads = "".join(
        f'<th scope="colgroup" style="text-align:right;padding-right:6px"><b>{escape(heading)}</b></th><th></th>'
        for heading in headings
    )
    columns = 2 + 2 * len(headings)
    bodies = "".join(
        f"<tbody>{''.join(_lines(row, block, columns))}</tbody>" for row, block in zip(study.rows, blocks, strict=True)
    )
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in study.sentences)
    table = f'<table><thead><tr><th></th>{heads}<th style="width:40%"></th></tr></thead>{bodies}</table>'
    return f'<div class="ts-report"><style>{STYLE}{_TABLE}</style>{sentences}{table if study.rows else ""}</div>'


def _lines(row: StudiedWorkload, block: Block, columns: int) -> Iterator[str]:
    about = f'<b>{escape(row.name)}</b> <span class="soft">{escape(row.sentence)}</span>'
    yield (
        f'<tr><th colspan="{columns}" scope="rowgroup" style="text-align:left;white-space:normal;opacity:1">'
        f"{about}</th></tr>"
    )
    for label, cells in block:
        named = f'<td class="soft" style="text-align:left;white-space:nowrap">{escape(label)}</td>'
        yield f'<tr class="more">{named}{"".join(map(_cell, cells))}<td></td></tr>'


def _cell(cell: Cell) -> str:
    value = cell.value.replace(" ", "\u00a0")
    return (
        f'<td class="num" style="text-align:right;padding-right:6px">{escape(value)}</td>'
        f'<td class="num" style="text-align:left;{_SIGNS[cell.sign]}">{escape(cell.ratio)}</td>'
    )


def study_figure(study: OrderStudy, theme: GraphTheme = "auto") -> go.Figure:
    """Draw each policy's peak and time relative to the reference's, per workload.

    Raises:
        ValueError: the study has no workload, or only one policy.
    """
    if not study.others or not study.rows:
        raise ValueError("a study's figure compares policies: it needs at least one workload and two policies")
    return figure_of(study_drawing(study, colours_of(theme)))


def study_drawing(study: OrderStudy, colours: Colours) -> Drawing:
    """Return the data of `study_figure`: two panels of bars that start at 1, the reference.

    Whiskers at the times show the middle half of the rounds.
    """
    height = _GAP + _BAR * len(study.others)
    peaks = [row.peak_ratio(policy, study.reference) for row in study.rows for policy in study.others]
    times = [row.time_ratio(policy, study.reference) for row in study.rows for policy in study.others]
    traces: list[Drawing] = []
    for number, policy in enumerate(study.others):
        at = [place + (number - (len(study.others) - 1) / 2) * _BAR / height for place in range(len(study.rows))]
        traces += _bars(study, policy, at, 0.72 * _BAR / height, colours)
    plot = height * len(study.rows)
    layout = {
        "height": plot + _TOP + _BOTTOM,
        "margin": {"l": 130, "r": 24, "t": _TOP, "b": _BOTTOM},
        **figure_style(colours),
        "hovermode": "closest",
        "hoverlabel": {"align": "left", **hover_label(colours)},
        "barmode": "overlay",
        "showlegend": True,
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1 + 26 / plot, "yanchor": "bottom",
            "font": {"color": colours["ink2"]}, "itemclick": False, "itemdoubleclick": False,
        },
        "xaxis": _axis(peaks, (0.0, 0.47), colours),
        "xaxis2": _axis([end for each in times for end in (each.low, each.high)], (0.53, 1.0), colours),
        "yaxis": {
            "range": [len(study.rows) - 0.5, -0.5],
            "tickvals": list(range(len(study.rows))),
            "ticktext": [escaped(cut(row.name, _CHARACTERS)) for row in study.rows],
            "tickfont": {"color": colours["ink"], "size": 12},
            "ticklabelstandoff": 8,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
        "shapes": list(_shapes(len(study.rows), colours)),
        "annotations": [
            _title(0.0, f"peak, × {study.reference}", plot, colours),
            _title(0.53, f"time, × {study.reference}", plot, colours),
        ],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _bars(study: OrderStudy, policy: str, at: list[float], width: float, colours: Colours) -> Iterator[Drawing]:
    """Yield the bars of one policy in both panels."""
    place = study.policies.index(policy)
    marker = {
        "color": colours[_COLOURS[place % len(_COLOURS)]],
        "pattern": {
            "shape": _PATTERNS[place // len(_COLOURS) % len(_PATTERNS)],
            "fillmode": "overlay",
            "fgcolor": colours["panel"],
            "size": 5,
        },
        "line": {"width": 0},
    }
    peaks = [row.peak_ratio(policy, study.reference) for row in study.rows]
    times = [row.time_ratio(policy, study.reference) for row in study.rows]
    bar = {
        "type": "bar",
        "orientation": "h",
        "name": escaped(policy),
        "legendgroup": policy,
        "y": at,
        "width": width,
        "base": 1,
        "marker": marker,
        "customdata": [_hover_text(study, row, policy) for row in study.rows],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    yield {
        **bar,
        "x": [ratio - 1 for ratio in peaks],
        "text": [ratio_text(ratio) for ratio in peaks],
        "textposition": "outside",
        "textfont": {"color": colours["ink2"]},
        "cliponaxis": False,
    }
    yield {
        **bar,
        "xaxis": "x2",
        "showlegend": False,
        "x": [spread.middle - 1 for spread in times],
        "error_x": {
            "type": "data",
            "array": [spread.high - spread.middle for spread in times],
            "arrayminus": [spread.middle - spread.low for spread in times],
            "visible": study.repetitions > 1,
            "color": colours["ink3"],
            "thickness": 1.2,
            "width": 3,
        },
    }


def _hover_text(study: OrderStudy, row: StudiedWorkload, policy: str) -> str:
    lines = [f"<b>{escaped(policy)}</b> on {escaped(row.name)}"]
    for what, cells in study.lines(row):
        mine, its = (cells[study.policies.index(each)] for each in (policy, study.reference))
        lines.append(f"{what} {mine.value} {mine.ratio}, {escaped(study.reference)} {its.value}")
    return "<br>".join(lines)


def _axis(ratios: list[float], domain: tuple[float, float], colours: Colours) -> dict[str, Any]:
    """Return an axis with room for all ratios, for 1, and for the text after the longest bar."""
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    axis: dict[str, Any] = {
        "domain": list(domain),
        "ticksuffix": "×",
        "tickfont": {"color": colours["ink3"]},
        "gridcolor": colours["line"],
        "zeroline": False,
        "nticks": 6,
    }
    if high < _FAR:
        room = 0.18 * max(high - low, 0.2)
        return {**axis, "range": [low - room, high + room]}
    ends = math.log10(low), math.log10(high)
    room = 0.18 * (ends[1] - ends[0])
    ticks = [
        mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if 0.5 * low <= mark <= 2 * high
    ]
    return {
        **axis,
        "type": "log",
        "range": [ends[0] - room, ends[1] + room],
        "tickvals": ticks,
        "ticktext": [f"{tick}×" for tick in ticks],
    }


def _shapes(rows: int, colours: Colours) -> Iterator[dict[str, Any]]:
    """Yield the reference's line in each panel, and lines between the workloads."""
    for axis in ("x", "x2"):
        yield {
            "type": "line", "xref": axis, "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1,
            "line": {"color": colours["ink3"], "width": 1},
        }  # fmt: skip
    for place in range(1, rows):
        yield {
            "type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": place - 0.5, "y1": place - 0.5,
            "line": {"color": colours["line"], "width": 1}, "layer": "below",
        }  # fmt: skip


def _title(x: float, text: str, plot: int, colours: Colours) -> dict[str, Any]:
    return {
        "xref": "paper", "yref": "paper", "x": x, "xanchor": "left", "y": 1 + 6 / plot, "yanchor": "bottom",
        "text": escaped(text), "showarrow": False, "font": {"color": colours["ink"], "size": 12},
    }  # fmt: skip
