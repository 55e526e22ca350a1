"""The memory chart of a deck's still picture, as SVG: a stack by category, and a line for each other policy."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import NamedTuple

from ...engine.memory.categories import Category
from ...engine.memory.category_levels import category_levels_at_peak, forward_category_levels, later_category_levels
from ...engine.memory.timeline import Timeline
from ...inspector.drawing.svg_text import escaped, shorten, text_width
from ...inspector.text.sizes_and_counts import nth, size_text
from ..pages.theme import CATEGORY_COLOURS

HEIGHT = 184.0

_LEFT, _RIGHT = 252.0, 150.0  # gutters for the legend with the scale, and for the names of the peaks
_LEGEND_WIDTH = 190.0
_TOP, _BOTTOM = 24.0, 164.0  # of the plot, with the sentence of the peak above and task numbers below
_SENTENCE = 11.0  # baseline of the sentence of the peak
_LEAST_NAME = 80.0  # pixels of a task's name that are never cut off
_FIRST_LABEL = 40.0  # pixels from the middle of the first label to that of the next
_BEFORE_OPTIMIZER = 6.0  # pixels kept free, because the optimizer's name is as wide as its region
_ROW = 15.0  # pixels of one name in a gutter
_MOST_COLUMNS = 500  # more would not be visible
_FORWARD_SHARE = 0.2  # of the plot, where the forward was recorded: as in the live chart
_FORWARD_COLUMNS = 100
_OPTIMIZER_SHARE = 0.12  # of the plot of a step: wide enough for the name
_STANDING = (Category.PARAMETER, Category.STATE)  # lowest in the stack
_MOST_POLICIES = 6  # peaks that are named
_HEADROOM = 1.05  # as in the live chart
_DASHES = {"heap": "", "bfs": "6 3", "dfs": "1.5 2.5"}  # as in the live chart
_OTHER_DASH = "9 3 2 3"


def memory_elements(
    timelines: Mapping[str, Timeline], sentence: str, width: float, begins: int | None = None
) -> Iterator[str]:
    """Yield the elements of the chart, `width` × `HEIGHT` pixels from (0, 0).

    Args:
        timelines: memory by policy. The first one is drawn as a stack.
        sentence: a description of the peak.
        width: the width in pixels.
        begins: for a step, the number of its first event; earlier events allocated memory before the step. None for a
            backward.
    """
    shown = next(iter(timelines.values()))
    plot = _Plot(timelines, width, begins)
    yield from _scale(plot)
    yield from _stack(plot, shown)
    yield from _phases(plot)
    for policy, timeline in list(timelines.items())[1:]:
        path = _steps(plot.levels(timeline.task_peaks, timeline))
        yield f'<path class="ts-other" stroke-dasharray="{_DASHES.get(policy, _OTHER_DASH)}" d="{path}"/>'
    line = plot.forward_levels(shown.levels) + plot.levels(shown.task_peaks, shown)
    line += plot.later_levels(shown.levels[shown.starts[-1] :])
    yield f'<path class="ts-level" d="{_steps(line)}"/>'
    yield from _task_numbers(plot)
    yield from _peak(plot, shown, sentence)
    yield from _legend(shown)
    yield from _policies(plot, timelines)


class _Plot:
    """The positions of events, tasks and bytes in the chart. Forward and optimizer are the first policy's."""

    def __init__(self, timelines: Mapping[str, Timeline], width: float, begins: int | None) -> None:
        self.right = width - _RIGHT
        shown = next(iter(timelines.values()))
        self.is_step = begins is not None
        self.begins = begins or 0
        self.forward_events = 0 if shown.before else shown.starts[0] - self.begins
        self.later_events = 0 if begins is None else len(shown.events) - shown.starts[-1]
        self.start = _LEFT + (_FORWARD_SHARE * (self.right - _LEFT) if self.forward_events else 0.0)
        self.stop = self.right - (_OPTIMIZER_SHARE * (self.right - _LEFT) if self.later_events else 0.0)
        peaks = [timeline.peak_bytes for timeline in timelines.values()]
        self.most = max([*peaks, (shown.forward_peak_bytes or 0) if self.forward_events else 0])
        self.tasks = max(len(timeline.order) for timeline in timelines.values())

    def x(self, place: float) -> float:
        """Return the position where a task starts, by its place in the order."""
        return self.start + (self.stop - self.start) * place / max(self.tasks, 1)

    def y(self, nbytes: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * nbytes / (max(self.most, 1) * _HEADROOM)

    def levels(self, column: Sequence[int], timeline: Timeline) -> list[tuple[float, float]]:
        """Return the start (x, y) of each level, and the end of the last. `column` has bytes by place."""
        points = [(self.x(first), self.y(column[highest])) for first, highest in _columns(timeline)]
        return [*points, (self.x(len(timeline.order)), points[-1][1])]

    def peak_x(self, timeline: Timeline) -> float:
        """Return the position of the peak: in the middle of its task, or at its event in a step's other phases."""
        place, levels = timeline.peak_place, timeline.levels
        if not self.is_step or 0 <= place < len(timeline.order):
            return self.x(min(max(place, 0), len(timeline.order)) + 0.5)
        first = self.begins if place < 0 else timeline.starts[-1]
        last = timeline.starts[0] + 1 if place < 0 else len(levels)
        event = max(range(first, last), key=levels.__getitem__) - first
        if place < 0:
            return _LEFT + (self.start - _LEFT) * event / (self.forward_events + 1)
        return self.stop + (self.right - self.stop) * event / (self.later_events + 1)

    def forward_levels(self, column: Sequence[int]) -> list[tuple[float, float]]:
        """Return the levels of the forward, whose events have equal widths; empty if it was not recorded.

        `column` has bytes before each of its events, and at its end.
        """
        own = column[self.begins : self.begins + self.forward_events + 1]
        return self._levels(own, _LEFT, self.start) if self.forward_events else []

    def later_levels(self, column: Sequence[int]) -> list[tuple[float, float]]:
        """Return the levels after the last task; empty without a step."""
        if not self.later_events:
            return []
        return [*self._levels(column, self.stop, self.right), (self.right, self.y(column[-1]))]

    def _levels(self, column: Sequence[int], left: float, right: float) -> list[tuple[float, float]]:
        together = -(-len(column) // _FORWARD_COLUMNS)
        width = (right - left) / len(column)
        firsts = range(0, len(column), together)
        return [(left + width * first, self.y(max(column[first : first + together]))) for first in firsts]


def _columns(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """Yield two positions for each group of tasks that share a column: the group's first, and that of its highest
    level.
    """
    peaks = timeline.task_peaks
    together = -(-len(peaks) // _MOST_COLUMNS)
    for first in range(0, len(peaks), together):
        yield first, max(range(first, min(first + together, len(peaks))), key=peaks.__getitem__)


def _scale(plot: _Plot) -> Iterator[str]:
    step = 1
    while plot.most / step > 4.2:
        step *= 2
    for level in range(0, plot.most + 1, step):
        y = number(plot.y(level))
        yield f'<path class="ts-grid" d="M{number(_LEFT)} {y}H{number(plot.right)}"/>'
        if level:
            at = number(plot.y(level) + 4)
            words = size_text(level).replace(".0 ", " ")
            yield f'<text class="ts-soft" x="{number(_LEFT - 6)}" y="{at}" text-anchor="end">{words}</text>'


def _stack(plot: _Plot, timeline: Timeline) -> Iterator[str]:
    """Yield one area for each category, between the sum of the categories below and its own level."""
    before, columns = forward_category_levels(timeline), timeline.category_levels
    later = later_category_levels(timeline) if plot.later_events else {}
    below = _Below(
        [0] * (plot.begins + plot.forward_events + 1), [0] * len(timeline.order), [0] * (plot.later_events + 1)
    )
    for category in sorted({*before, *columns, *later}, key=lambda each: (each not in _STANDING, each)):
        above = _Below(
            _added(below.before, before.get(category)),
            _added(below.tasks, columns.get(category)),
            _added(below.later, later.get(category)),
        )
        path = f"{_steps(above.points(plot, timeline))}L{_steps_back(below.points(plot, timeline))}Z"
        yield f'<path style="fill:var(--{CATEGORY_COLOURS[category]})" d="{path}"/>'
        below = above


class _Below(NamedTuple):
    """Bytes of all categories up to one: by event of the forward, by task, by event after the last task."""

    before: list[int]
    tasks: list[int]
    later: list[int]

    def points(self, plot: _Plot, timeline: Timeline) -> list[tuple[float, float]]:
        return [
            *plot.forward_levels(self.before),
            *plot.levels(self.tasks, timeline),
            *plot.later_levels(self.later),
        ]


def _added(below: list[int], column: array[int] | None) -> list[int]:
    return below if column is None else [one + other for one, other in zip(below, column, strict=True)]


def _phases(plot: _Plot) -> Iterator[str]:
    """Yield the names of forward and optimizer, and the lines where the backward begins and ends."""
    phases = (
        (plot.forward_events, "forward", plot.start, (_LEFT + plot.start) / 2),
        (plot.later_events, "optimizer", plot.stop, (plot.stop + plot.right) / 2),
    )
    for events, name, edge, middle in phases:
        if events:
            yield f'<path class="ts-grid" d="M{number(edge)} {number(_TOP)}V{number(_BOTTOM)}"/>'
            yield f'<text class="ts-soft ts-mid" x="{number(middle)}" y="{number(_BOTTOM + 16)}">{name}</text>'


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """Return a path along the levels; each holds until the next one."""
    data = f"M{number(points[0][0])} {number(points[0][1])}"
    for (_, y), (next_x, next_y) in pairwise(points):
        if next_y != y:
            data += f"H{number(next_x)}V{number(next_y)}"
    return f"{data}H{number(points[-1][0])}"


def _steps_back(points: Sequence[tuple[float, float]]) -> str:
    """Return the same path from its end to its start, without the first command."""
    data = f"{number(points[-1][0])} {number(points[-1][1])}"
    for (x, y), (_, later_y) in reversed(list(pairwise(points))):
        if y != later_y:
            data += f"V{number(y)}"
        data += f"H{number(x)}"
    return data


def _task_numbers(plot: _Plot) -> Iterator[str]:
    """Yield the positions of some tasks in the run, below their columns, as on the page."""
    round_numbers = (base * 10**power for power in count() for base in (1, 2, 5))
    step = next(each for each in round_numbers if plot.tasks / each <= 10)
    for task in sorted({1, *range(step, plot.tasks + 1, step)}):
        if task > 1 and plot.x(task) - plot.x(1) < _FIRST_LABEL:
            continue
        if plot.later_events and plot.x(task - 0.5) + text_width(nth(task)) / 2 > plot.stop - _BEFORE_OPTIMIZER:
            continue
        at = f'x="{number(plot.x(task - 0.5))}" y="{number(_BOTTOM + 16)}"'
        yield f'<text class="ts-soft ts-mid" {at}>{nth(task)}</text>'
    end = f'x="{number(_LEFT - 16)}" y="{number(_BOTTOM + 16)}" text-anchor="end"'
    yield f'<text class="ts-soft" {end}>task</text>'


def _peak(plot: _Plot, timeline: Timeline, sentence: str) -> Iterator[str]:
    """Yield a ring at the peak, and the sentence above the plot, where it hides no line; worded as on the page."""
    place = timeline.peak_place
    x, y = plot.peak_x(timeline), plot.y(timeline.peak_bytes)
    start = f"peak {size_text(timeline.peak_bytes)}"
    width = plot.right + _RIGHT
    left = width - text_width(start, bold=True)
    after = f"; {sentence}" if sentence else ""
    when = _when(timeline, plot.is_step, max(_LEAST_NAME, left - text_width(f": the {nth(place + 1)} task, {after}")))
    rest = shorten(f": {when}{after}", left)
    needed = text_width(start, bold=True) + text_width(rest)
    # The space beside the plot is also free.
    first, last = (_LEFT, plot.right) if needed <= plot.right - _LEFT else (0.0, width)
    at = min(max(x - needed / 2, first), last - needed)
    yield f'<circle class="ts-ring" cx="{number(x)}" cy="{number(y)}" r="3.4"/>'
    yield (
        f'<text x="{number(at)}" y="{number(_SENTENCE)}">'
        f'<tspan class="ts-bold">{start}</tspan><tspan class="ts-second">{escaped(rest)}</tspan></text>'
    )


def _when(timeline: Timeline, is_step: bool, name_width: float) -> str:
    place, order = timeline.peak_place, timeline.order
    if place < 0:
        return "in the forward" if is_step else "before the first task"
    if place >= len(order):
        return "after the backward" if is_step else "after the last task"
    return f"the {nth(place + 1)} task, {shorten(timeline.graph.tasks[order[place]].short_name, name_width)}"


def _legend(timeline: Timeline) -> Iterator[str]:
    """Yield the categories with their bytes at the peak."""
    for row, (category, nbytes) in enumerate(category_levels_at_peak(timeline).items()):
        y = _TOP + 4 + row * _ROW
        colour = f"fill:var(--{CATEGORY_COLOURS[category]})"
        end = f'x="{number(_LEGEND_WIDTH)}" text-anchor="end"'
        yield f'<rect y="{number(y - 8)}" width="9" height="9" rx="2" style="{colour}"/>'
        yield f'<text class="ts-second" x="15" y="{number(y)}">{category.plural}</text>'
        yield f'<text {end} y="{number(y)}">{size_text(nbytes) if nbytes else 0}</text>'


def _policies(plot: _Plot, timelines: Mapping[str, Timeline]) -> Iterator[str]:
    """Yield the name of each policy at the height of its peak, moved if names would overlap."""
    named = sorted(list(timelines.items())[:_MOST_POLICIES], key=lambda each: -each[1].peak_bytes)
    first = next(iter(timelines))
    rows = _spread([plot.y(timeline.peak_bytes) for _, timeline in named])
    for (policy, timeline), row in zip(named, rows, strict=True):
        x, y = plot.right, plot.y(timeline.peak_bytes)
        yield f'<path class="ts-leader" d="M{number(x)} {number(y)}h4L{number(x + 8)} {number(row)}"/>'
        if policy == first:
            yield f'<rect class="ts-chosen" x="{number(x + 11)}" y="{number(row - 4)}" width="14" height="8"/>'
        else:
            dash = _DASHES.get(policy, _OTHER_DASH)
            yield f'<path class="ts-other" stroke-dasharray="{dash}" d="M{number(x + 11)} {number(row)}h14"/>'
        amount = size_text(timeline.peak_bytes)
        name = shorten(policy.upper(), _RIGHT - 34 - text_width(amount, bold=True), bold=True)
        weight = ' class="ts-bold"' if policy == first else ' class="ts-second"'
        yield f'<text{weight} x="{number(x + 30)}" y="{number(row + 4)}">{escaped(name)} {amount}</text>'


def _spread(heights: Iterable[float]) -> list[float]:
    """Return heights for rows, close to these, in the same order, inside the plot and without overlap."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, _TOP, placed[-1] + _ROW if placed else 0.0))
    limit = _BOTTOM
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], limit)
        limit = placed[at] - _ROW
    return placed


def number(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{round(value, 1):g}"
