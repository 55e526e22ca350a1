"""Memory drawn with plotly: levels over tasks, categories, lifetimes, and the storages alive at a peak.

Each `*_drawing` function returns a figure as plain data, which notebooks and HTML pages share.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ...engine.memory.categories import Category
from ...engine.memory.storage_sentences import StorageWords
from ...engine.memory.timeline import Storage, Timeline
from ...engine.recording.peak_report import PeakGroup, PeakReport
from ...inspector.graph.phrases import module_title
from ...inspector.renderers import GraphTheme
from ...inspector.text.sizes_and_counts import share_text, size_text, unit_name, unit_of
from .notebook_figure import figure_of
from .plotly_data import LINE, Drawing, cut, escaped, wrapped
from .theme import CATEGORY_COLOURS, Colours, axis_style, colours_of, figure_style, hover_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_POINTS = 1500  # per line; more than a plot has pixels on a screen
_MOST_BARS = 30
_MOST_LEAVES = 250  # groups in a treemap
_KNOWN = {"heap": ("solid", "ink"), "bfs": ("dash", "accent"), "dfs": ("dot", "saved")}
"""Dash and colour of a policy's line, the same on every page; the deck's dashes are in policy_line_styles.ts."""
_OTHERS = (("dashdot", "pgrad"), ("longdash", "held"), ("longdashdot", "work"))
_WIDTHS = (3.2, 2.2, 1.6)  # later lines are thinner, so that equal lines are all visible
_HEIGHT = 340
_TOP, _BOTTOM = 44, 46  # margins of the memory figures, pixels
_ROW = 21  # pixels per bar
_LABEL = 30  # characters of a bar's name
_NAME = 34  # characters of a policy's name in the legend
_HOVER = "%{customdata[0]}  %{customdata[1]}%{customdata[2]}"


def memory_figure(timelines: Mapping[str, Timeline], theme: GraphTheme = "auto") -> go.Figure:
    """Draw the memory level over the tasks, one line per policy."""
    return figure_of(memory_drawing(timelines, colours_of(theme)))


def category_figure(timeline: Timeline, theme: GraphTheme = "auto") -> go.Figure:
    """Draw the memory level over the tasks, stacked by category."""
    return figure_of(category_drawing(timeline, colours_of(theme)))


def lifetimes_figure(timeline: Timeline, theme: GraphTheme = "auto", *, clock: bool = False) -> go.Figure:
    """Draw the lifetimes of storages as bars, the largest by bytes × time first.

    Raises:
        ValueError: `clock` is set, but the timeline has no times.
    """
    return figure_of(lifetimes_drawing(timeline, colours_of(theme), clock=clock))


def peak_figure(report: PeakReport, theme: GraphTheme = "auto") -> go.Figure:
    """Draw the peak as a treemap of categories, modules and source lines."""
    return figure_of(peak_drawing(report, colours_of(theme)))


def memory_drawing(timelines: Mapping[str, Timeline], colours: Colours, points: int = _MOST_POINTS) -> Drawing:
    """Return the data of `memory_figure`. With more tasks than points, each point is the highest of several tasks."""
    highest = max(timeline.peak_bytes for timeline in timelines.values())
    scale = unit_of(highest)
    count = max(len(timeline.order) for timeline in timelines.values())
    traces = []
    others = cycle(_OTHERS)
    for number, (policy, timeline) in enumerate(timelines.items()):
        dash, colour = _KNOWN.get(policy) or next(others)
        bins = _bins(timeline, points)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{escaped(cut(policy, _NAME))}  <b>{size_text(timeline.peak_bytes)}</b>",
                "x": [*(first for first, _, _ in bins), len(timeline.order)],
                "y": [*(timeline.task_peaks[at] / 1024**scale for _, at, _ in bins), timeline.end_bytes / 1024**scale],
                "customdata": _hover_texts(timeline, bins),
                "hovertemplate": f"<b>{escaped(policy)}</b>  {_HOVER}<extra></extra>",
                "legendgroup": policy,
                "line": {
                    "shape": "hv",
                    "width": _WIDTHS[min(number, len(_WIDTHS) - 1)],
                    "dash": dash,
                    "color": colours[colour],
                },
            }
        )
    top = 1.1 * highest / 1024**scale or 1
    for policy, timeline in timelines.items():
        traces.append(_ring(timeline, scale, colours, policy))
    layout = _layout(colours, _HEIGHT)
    layout["margin"] = {"l": 64, "r": 12, "t": 16, "b": _BOTTOM}
    layout["xaxis"] |= {
        "range": [0, count],
        "title": _axis_title(_with_bin_size("task, in the order in which they run", count, points)),
    }
    layout["yaxis"] |= {"range": [0, top], "ticksuffix": f" {unit_name(scale)}"}
    layout["legend"] = {"font": {"color": colours["ink"]}, "tracegroupgap": 0}
    return {"data": traces, "layout": layout}


def category_drawing(timeline: Timeline, colours: Colours, points: int = _MOST_POINTS) -> Drawing:
    """Return the data of `category_figure`."""
    scale = unit_of(timeline.peak_bytes)
    bins = _bins(timeline, points)
    count = len(timeline.order)
    xs = [*(first for first, _, _ in bins), count]
    traces: list[dict[str, Any]] = []
    for category, levels in timeline.category_levels.items():
        ys = [levels[at] / 1024**scale for _, at, _ in bins]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": category.title,
                "stackgroup": "levels",
                "x": xs,
                "y": [*ys, ys[-1] if ys else 0],
                "customdata": [*(size_text(levels[at]) for _, at, _ in bins), ""],
                "hovertemplate": f"{category.title}  %{{customdata}}<extra></extra>",
                "line": {"shape": "hv", "width": 0, "color": colours[CATEGORY_COLOURS[category]]},
                "fillcolor": colours[CATEGORY_COLOURS[category]],
            }
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "all",
            "showlegend": False,
            "x": xs,
            "y": [*(timeline.task_peaks[at] / 1024**scale for _, at, _ in bins), timeline.end_bytes / 1024**scale],
            "customdata": _hover_texts(timeline, bins),
            "hovertemplate": f"<b>all</b>  {_HOVER}<extra></extra>",
            "line": {"shape": "hv", "width": 1.4, "color": colours["ink"]},
        }
    )
    traces.append(_ring(timeline, scale, colours, "peak"))
    layout = _layout(colours, _HEIGHT)
    layout["margin"] = {"l": 64, "r": 24, "t": _TOP, "b": _BOTTOM}
    layout["xaxis"] |= {
        "range": [0, count],
        "title": _axis_title(_with_bin_size("task, in the order in which they ran", count, points)),
    }
    layout["yaxis"] |= {
        "range": [0, 1.1 * timeline.peak_bytes / 1024**scale or 1],
        "ticksuffix": f" {unit_name(scale)}",
    }
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": colours["ink2"]}}
    return {"data": traces, "layout": layout}


def lifetimes_drawing(timeline: Timeline, colours: Colours, *, clock: bool = False) -> Drawing:
    """Return the data of `lifetimes_figure`."""
    if clock and not timeline.event_ns:
        raise ValueError(
            "clock=True needs a measured timeline; this one is predicted and has no times. Leave out clock= to draw "
            "over tasks"
        )
    end = timeline.event_ns[-1] / 1e6 if clock else float(len(timeline.order))
    storages = heapq.nlargest(_MOST_BARS, timeline, key=lambda each: each.nbytes * _length(each, end, clock))
    words = StorageWords(timeline)
    traces = [*_bars(timeline, words, storages, end, clock, colours), *_ends(storages, end, clock, colours)]
    return {"data": traces, "layout": _lifetimes_layout(timeline, words, storages, end, clock, colours)}


def _bars(
    timeline: Timeline, words: StorageWords, storages: list[Storage], end: float, clock: bool, colours: Colours
) -> list[Drawing]:
    """Return one trace per category. A storage that changes its category has several bars."""
    segments: dict[Category, list[tuple[int, float, float]]] = {}
    for row, storage in enumerate(storages):
        start, stop = _span(storage, end, clock)
        category = Category(timeline.born_as[storage.number])
        for event, place, becomes in timeline.changes_of.get(storage.number, ()):
            at = timeline.event_ns[min(event, len(timeline.event_ns) - 1)] / 1e6 if clock else float(place)
            if at >= stop:
                break
            if at > start:
                segments.setdefault(category, []).append((row, start, at))
                start = at
            category = becomes
        segments.setdefault(category, []).append((row, start, stop))
    hover_texts = [_hover_text(words, storage) for storage in storages]
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": category.title,
            "base": [start for _, start, _ in segments[category]],
            "x": [stop - start for _, start, stop in segments[category]],
            "y": [row for row, _, _ in segments[category]],
            "width": 0.62,
            "customdata": [hover_texts[row] for row, _, _ in segments[category]],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {"color": colours[CATEGORY_COLOURS[category]], "line": {"width": 0}},
        }
        for category in sorted(segments)
    ]


def _ends(storages: list[Storage], end: float, clock: bool, colours: Colours) -> Iterator[Drawing]:
    """Yield the marks at the ends of the bars: made before the backward, still alive, freed."""
    ends = (
        ("triangle-left", [(row, 0.0) for row, each in enumerate(storages) if each.born < 0], "made in the forward"),
        ("triangle-right", [(row, end) for row, each in enumerate(storages) if each.died is None], "alive at the end"),
        (
            "line-ns-open",
            [(row, _span(each, end, clock)[1]) for row, each in enumerate(storages) if each.died is not None],
            "freed",
        ),
    )
    for symbol, points, name in ends:
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [x for _, x in points],
            "y": [row for row, _ in points],
            "hoverinfo": "skip",
            "cliponaxis": False,
            "visible": bool(points),
            "marker": {
                "symbol": symbol,
                "size": 7 if symbol[0] == "t" else 11,
                "color": colours["ink"],
                "line": {"width": 1.5},
            },
        }


def _lifetimes_layout(
    timeline: Timeline, words: StorageWords, storages: list[Storage], end: float, clock: bool, colours: Colours
) -> dict[str, Any]:
    rest = len(timeline) - len(storages)
    axis = "milliseconds since the start of the backward" if clock else "task, in the order in which they ran"
    layout = bars_layout([words.name(each) for each in storages], [each.nbytes for each in storages], colours)
    layout["xaxis"] |= {
        "range": [0, end or 1],
        "title": _axis_title(axis + (f" · +{rest:,} more storages" if rest else "")),
    }
    return layout


def bars_layout(names: Sequence[str], sizes: Sequence[int], colours: Colours) -> dict[str, Any]:
    """Return the layout of a figure with a bar for each storage, its name to the left and its size to the right."""
    layout = _layout(colours, _TOP + _BOTTOM + _ROW * max(len(names), 1))
    layout |= {"barmode": "overlay", "hovermode": "closest", "bargap": 0}
    layout["margin"] = {"l": 222, "r": 84, "t": _TOP, "b": _BOTTOM}
    layout["yaxis"] |= {
        "range": [len(names) - 0.5, -0.5],
        "tickvals": list(range(len(names))),
        "ticktext": [escaped(cut(name, _LABEL)) for name in names],
        "showgrid": False,
        "fixedrange": True,
    }
    layout["legend"] = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"color": colours["ink2"]}}
    layout["annotations"] = [
        {
            "xref": "paper",
            "x": 1,
            "xanchor": "left",
            "xshift": 12,
            "y": row,
            "text": size_text(nbytes),
            "showarrow": False,
            "font": {"size": 11, "color": colours["ink2"]},
        }
        for row, nbytes in enumerate(sizes)
    ]
    return layout


def peak_drawing(report: PeakReport, colours: Colours) -> Drawing:
    """Return the data of `peak_figure`. If there are many groups, the smallest are combined per category."""
    layout = _layout(colours, 380)
    layout["margin"] = {"l": 12, "r": 12, "t": 12, "b": 12}
    del layout["xaxis"], layout["yaxis"]
    return {"data": [_PeakTree(report, colours).treemap()], "layout": layout}


class _PeakTree:
    """The boxes of a treemap, each with its parent: category, module, and group of storages."""

    def __init__(self, report: PeakReport, colours: Colours) -> None:
        self._report = report
        self._colours = colours
        self._ids, self._parents, self._values = ["peak"], [""], [report.nbytes]
        self._tints, self._inks = [colours["sunk"]], [colours["on-sunk"]]
        self._labels = [f"the peak  {size_text(report.nbytes)}"]
        self._hover_texts = [f"<b>{size_text(report.nbytes)}</b> alive at the peak"]
        # By identity, because two groups can have equal contents.
        self._largest = set(map(id, heapq.nlargest(_MOST_LEAVES, report.groups, key=lambda group: group.nbytes)))
        for category in report.categories:
            self._add_category(category)

    def _add_category(self, category: Category) -> None:
        report = self._report
        top = f"{int(category)}"
        self._add(top, "peak", category.title, report.categories[category], category)
        modules: dict[str | None, list[PeakGroup]] = {}
        rest: list[PeakGroup] = []
        for group in report.groups:
            if group.category is category:
                (modules.setdefault(group.module, []) if id(group) in self._largest else rest).append(group)
        for number, (module, groups) in enumerate(modules.items()):
            below = f"{top}/{number}"
            if len(groups) == 1:
                (group,) = groups
                self._add(below, top, report.module_title(group) + _grad_mark(group), group.nbytes, category, group)
                continue
            title = module_title(report.timeline.graph, module)
            self._add(below, top, title, sum(group.nbytes for group in groups), category)
            for at, group in enumerate(groups):
                line = group.source.short if group.source else f"by {group.made_by}"
                self._add(f"{below}/{at}", below, line + _grad_mark(group), group.nbytes, category, group)
        if rest:
            title = f"+{len(rest):,} smaller groups"
            self._add(f"{top}/rest", top, title, sum(group.nbytes for group in rest), category)

    def _add(
        self, name: str, parent: str, label: str, nbytes: int, category: Category, group: PeakGroup | None = None
    ) -> None:
        report, colours = self._report, self._colours
        self._ids.append(name)
        self._parents.append(parent)
        self._labels.append(f"{escaped(cut(label, 40))}{'<br>' if group else '  '}{size_text(nbytes)}")
        self._values.append(nbytes)
        self._tints.append(colours[CATEGORY_COLOURS[category]])
        self._inks.append(colours[f"on-{CATEGORY_COLOURS[category]}"])
        title = escaped(cut(report.title(group) if group else label, LINE))
        details = ""
        if group is not None:
            parts = (f"made by {group.made_by}", f"kept: {group.kept_by}", f"freed {group.freed_by}")
            count = f"{len(group.storages):,} storages<br>" if len(group.storages) > 1 else ""
            details = f"<br>{count}{'<br>'.join(map(wrapped, parts))}"
        self._hover_texts.append(f"<b>{title}</b><br>{size_text(nbytes)}, {share_text(nbytes, report.nbytes)}{details}")

    def treemap(self) -> Drawing:
        """Return the trace."""
        colours = self._colours
        return {
            "type": "treemap",
            "ids": self._ids,
            "parents": self._parents,
            "labels": self._labels,
            "values": self._values,
            "branchvalues": "total",
            "textinfo": "label",
            "textfont": {"color": self._inks},
            "customdata": self._hover_texts,
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {
                "colors": self._tints,
                "line": {"color": colours["panel"], "width": 1},
                "pad": {"t": 20, "l": 3, "r": 3, "b": 3},
            },
            "tiling": {"packing": "squarify", "pad": 1},
            "pathbar": {"visible": True, "thickness": 20, "textfont": {"color": colours["ink2"], "size": 11}},
            "maxdepth": 4,
        }


def _grad_mark(group: PeakGroup) -> str:
    return " → .grad" if group.stays else ""


def _layout(colours: Colours, height: int) -> dict[str, Any]:
    axis = axis_style(colours) | {"tickcolor": colours["line2"]}
    return {
        "height": height,
        **figure_style(colours),
        "hovermode": "x unified",
        "hoverlabel": {"align": "left", **hover_label(colours)},
        "xaxis": {**axis, "showgrid": False, "unifiedhovertitle": {"text": "after %{x} tasks"}},
        "yaxis": {**axis, "fixedrange": True},
        "showlegend": True,
    }


def _axis_title(text: str) -> dict[str, Any]:
    return {"text": text, "standoff": 8}


def _with_bin_size(text: str, count: int, points: int) -> str:
    per_point = -(-count // points)
    return text if per_point == 1 else f"{text} · each point is the highest of {per_point:,} tasks"


def _bins(timeline: Timeline, points: int) -> list[tuple[int, int, int]]:
    """Return (first place, place of the highest level, number of tasks) of each point."""
    peaks = timeline.task_peaks
    count = len(peaks)
    per_point = max(-(-count // points), 1)
    return [
        (first, max(range(first, min(first + per_point, count)), key=peaks.__getitem__), min(per_point, count - first))
        for first in range(0, count, per_point)
    ]


def _hover_texts(timeline: Timeline, bins: list[tuple[int, int, int]]) -> list[tuple[str, str, str]]:
    """Return the hover texts of each point and of the end: the level, the task's position, and its description."""
    count = len(timeline.order)
    found = []
    for _, place, _ in bins:
        described = escaped(cut(timeline.graph.describe(timeline.order[place]), LINE))
        found.append((size_text(timeline.task_peaks[place]), f"{place + 1:,} of {count:,}: ", described))
    return [*found, (size_text(timeline.end_bytes), "at the end", "")]


def _ring(timeline: Timeline, scale: int, colours: Colours, name: str) -> dict[str, Any]:
    """Return the marker at the peak."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"peak of {escaped(name)}",
        "legendgroup": name,
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
        "x": [max(timeline.peak_place, 0)],
        "y": [timeline.peak_bytes / 1024**scale],
        "marker": {"size": 9, "color": colours["panel"], "line": {"width": 2, "color": colours["ink"]}},
    }


def _span(storage: Storage, end: float, clock: bool) -> tuple[float, float]:
    """Return the start and end of a storage's bar.

    A task is one unit wide, so the bar of a storage freed in it extends to the task's end.
    """
    if clock:
        start = 0.0 if storage.born < 0 or storage.born_ns is None else storage.born_ns / 1e6
        return start, end if storage.died_ns is None else storage.died_ns / 1e6
    stop = end if storage.died is None else min(storage.died + 1.0, end)
    return max(float(storage.born), 0.0), stop


def _length(storage: Storage, end: float, clock: bool) -> float:
    start, stop = _span(storage, end, clock)
    return stop - start


def _hover_text(words: StorageWords, storage: Storage) -> str:
    source = storage.made_by.source
    where = f" at {source.short}" if source else ""
    return (
        f"<b>{escaped(cut(words.name(storage), LINE))}</b><br>{size_text(storage.nbytes)} {storage.category.title}"
        f"<br>{wrapped(f'made by {words.made_by([storage])}{where}')}"
        f"<br>{wrapped(f'kept: {words.kept_by([storage], storage.category)}')}"
        f"<br>{wrapped(f'freed {words.freed_by([storage])}')}"
    )
