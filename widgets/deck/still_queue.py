"""The ready queue and the next task in a deck's still picture, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...engine.planning.policies import POLICIES
from ...inspector.drawing.svg_text import escaped, shorten
from ...inspector.graph.graph import Graph, whose
from ...inspector.graph.phrases import folded, pattern
from ...inspector.text.sizes_and_counts import counted

_ROW = 16.0  # pixels of one line of text
_FIRST = 26.0  # baseline of the first line below the heading
_DESCENT = 4.0  # below the last line
_MOST_ROWS = 6
_GAP = 24.0  # pixels between the two columns
_QUEUE_SHARE = 0.45  # of the width; the task's lines are longer


def queue_elements(
    graph: Graph, ready: Sequence[int], current: int, policy: str, stopped: str, width: float
) -> tuple[list[str], float]:
    """Return the elements of the two columns, and their height in pixels.

    Args:
        graph: the graph.
        ready: the ids of the ready tasks, in the order in which they run.
        current: the id of the task that runs next.
        policy: the name of the policy.
        stopped: the reason why the last run stopped early, as a sentence above the columns, or "".
        width: the width of both columns together, in pixels.
    """
    left = width * _QUEUE_SHARE
    queue, about = _queue_rows(graph, ready), _task_rows(graph, ready, current, policy)
    elements = _column("Ready queue", f"{len(ready):,} ready, in the order in which they run", queue, left)
    elements.append(f'<g transform="translate({left + _GAP:g} 0)">')
    elements += [*_column("Next task", "", about, width - left - _GAP), "</g>"]
    height = _FIRST + (max(len(queue), len(about)) - 1) * _ROW + _DESCENT
    if not stopped:
        return elements, height
    said = escaped(shorten(f"Stopped: {stopped}", width))
    return [
        f'<text y="6">{said}</text>',
        f'<g transform="translate(0 {_FIRST:g})">',
        *elements,
        "</g>",
    ], height + _FIRST


def _queue_rows(graph: Graph, ready: Sequence[int]) -> list[str]:
    """Return a line for each ready task; neighbours in the queue that differ only in a number share a line."""

    def where(task_id: int) -> str:
        return whose(graph, graph.tasks[task_id])

    def kind(task_id: int) -> tuple[str, str]:
        return graph.tasks[task_id].short_name, pattern(where(task_id))

    groups = [[*tasks] for _, tasks in groupby(ready, kind)]
    rows = []
    for tasks in groups[:_MOST_ROWS]:
        count, path = "" if len(tasks) == 1 else f"{len(tasks):,} × ", folded(map(where, tasks))
        rows.append(f"{count}{graph.tasks[tasks[0]].short_name}" + (f" ({path})" if path else ""))
    more = sum(map(len, groups[_MOST_ROWS:]))
    return [*rows, f"and {more:,} more"] if more else rows


def _task_rows(graph: Graph, ready: Sequence[int], current: int, policy: str) -> list[str]:
    """Return lines about the next task: its name, the reason for the choice, its input buffer, its source line."""
    task = graph.tasks[current]
    count = len(ready)
    reason = "the only ready task"
    if ready[0] != current:
        reason = f"chosen by hand out of {count}"
    elif count > 1:
        rule = f": {POLICIES[policy].title}" if policy in POLICIES else ""
        reason = f"first of {count} under {policy}{rule}"
    lines = [graph.describe(task), reason]
    if task.inputs:
        buffer = ", ".join(map(str, task.inputs[:3]))
        lines.append(f"its input buffer: {counted(len(task.inputs), 'gradient')}, {buffer}")
    code = () if task.source is None else task.source.code()
    return lines + [line.strip() for line in code]


def _column(title: str, subtitle: str, rows: Sequence[str], width: float) -> list[str]:
    heading = f'<text y="6"><tspan class="ts-bold">{title}</tspan>'
    elements = [
        f'{heading}<tspan class="ts-soft" dx="8">{subtitle}</tspan></text>' if subtitle else f"{heading}</text>"
    ]
    for number, row in enumerate(rows):
        said = escaped(shorten(row, width))
        elements.append(f'<text class="ts-second" y="{_FIRST + number * _ROW:g}">{said}</text>')
    return elements
