"""A backward as a table: a row for each task, in the order in which they ran."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import nan, sqrt
from typing import Any

import torch

from ...inspector.graph.facts import Operation, resolve_sources
from ...inspector.graph.graph import Graph, Task
from ...inspector.torch_internals.sequence_numbers import UNNUMBERED
from ..memory.measured_device import chosen_device
from ..memory.timeline import Timeline
from ..trace.run import Run
from ..trace.trace import Trace, usual_outputs
from ..trace.trace_columns import Forms, term_at
from .frames import frame_of
from .task_clock import TaskClock

Columns = dict[str, Sequence[Any]]

_INTEGERS = (
    *("sequence_nr", "line", "bytes_before", "bytes_after", "peak_bytes", "allocated_bytes", "freed_bytes"),
    *("output_nan", "output_inf"),
)
_SECOND = 1e9


def trace_frame(trace: Trace) -> Any:
    """What `Trace.to_pandas` gives."""
    clock = TaskClock.of_trace(trace)
    return frame_of(_of_graph(trace.graph, trace.order) | _of_trace(trace) | _times(clock), _INTEGERS)


def run_frame(run: Run, device: torch.device | str | None = None) -> Any:
    """What `Run.to_pandas` gives.

    Raises:
        ValueError: the memory of this device was not measured.
    """
    timeline = run.timeline
    if device is not None:
        if timeline is None:
            raise ValueError(f"device={str(device)!r}, but the memory of this run was not measured")
        timeline = run.timelines[chosen_device(device, run.timelines)]
    columns = _of_graph(run.graph, run.order)
    if run.trace is not None and run.trace.order == run.order:
        columns |= _of_trace(run.trace)
    else:
        columns["ready"] = run.queue_lengths
    if (clock := TaskClock.of(run)) is not None:
        columns |= _times(clock)
    if timeline is not None:
        columns |= _of_memory(timeline, run.order)
    return frame_of(columns, _INTEGERS)


def _of_graph(graph: Graph, order: Sequence[int]) -> Columns:
    """What is known of each task without running it."""
    tasks = [graph.tasks[task] for task in order]
    resolve_sources([task.operation for task in tasks if isinstance(task.operation, Operation)])
    sources = [task.source for task in tasks]
    return {
        "place": range(len(tasks)),
        "task": order,
        "name": [task.short_name if task.is_leaf else task.name for task in tasks],
        "parameter": [task.parameter for task in tasks],
        "module": [graph.module(task) for task in tasks],
        "operation": [None if task.operation is None else task.operation.name for task in tasks],
        "file": [None if source is None else source.file for source in sources],
        "line": [None if source is None else source.line for source in sources],
        "function": [None if source is None else source.function for source in sources],
        "sequence_nr": [_number(task) for task in tasks],
        "device": [str(task.device) for task in tasks],
    }


def _number(task: Task) -> int | None:
    """None for a leaf, whose number is the highest that there is."""
    return None if task.is_leaf or task.sequence_nr >= UNNUMBERED else task.sequence_nr


def _of_trace(trace: Trace) -> Columns:
    columns, order = trace.columns, trace.order
    found: Columns = {
        "policy": [term_at(trace.terms, place).policy for place in range(len(order))],
        "by_hand": [bool(columns.by_hand[task]) for task in order],
        "thread": [columns.thread[task] for task in order],
        "ready": [columns.arrived[task] - place for place, task in enumerate(order)],
    }
    return found if trace.level == "off" else found | _of_gradients(trace)


def _of_gradients(trace: Trace) -> Columns:
    """Of all gradients of a task together: the norm of those that it got, and of those that it gave; of the latter also
    how many elements are NaN or infinite."""
    table = trace.table.snapshot()
    given = [_rows(trace, task, trace.columns.inputs, trace.columns.input_row, _taken) for task in trace.order]
    made = [_rows(trace, task, trace.columns.outputs, trace.columns.output_row, _gave) for task in trace.order]
    norm, unread = table.columns.norm, table.unavailable

    def together(rows: range) -> float:
        return nan if not rows or any(row in unread for row in rows) else sqrt(sum(norm[row] ** 2 for row in rows))

    def number(counts: array[int], rows: range) -> int | None:
        return None if any(row in unread for row in rows) else sum(counts[row] for row in rows)

    return {
        "input_norm": [together(rows) for rows in given],
        "output_norm": [together(rows) for rows in made],
        "output_nan": [number(table.columns.nan_count, rows) for rows in made],
        "output_inf": [number(table.columns.inf_count, rows) for rows in made],
    }


def _rows(trace: Trace, task: int, forms: array[int], rows: array[int], usual: Any) -> range:
    """The rows of statistics of a task's gradients, one for each that is defined."""
    first = rows[task] if rows else -1
    if first < 0:
        return range(0)
    found: Forms | None = trace.forms[forms[task]]
    looks = usual(trace.graph, task) if found is None else found
    return range(first, first + sum(each is not None for each in looks))


def _taken(graph: Graph, task: int) -> Sequence[object]:
    return graph.tasks[task].inputs


def _gave(graph: Graph, task: int) -> Sequence[object]:
    return usual_outputs(graph, task)


def _times(clock: TaskClock) -> Columns:
    return {
        "started_s": [ns / _SECOND for ns in clock.starts],
        "ended_s": [nan if ns is None else ns / _SECOND for ns in clock.ends],
    }


def _of_memory(timeline: Timeline, order: Sequence[int]) -> Columns:
    """The level as a task starts, as the next one does, and at its highest between; and what that adds up from."""
    levels, starts = timeline.levels, timeline.starts
    found: Mapping[str, list[int | None]] = {
        "bytes_before": [levels[start] for start in starts[:-1]],
        "bytes_after": [levels[end] for end in starts[1:]],
        "peak_bytes": list(timeline.task_peaks),
        "allocated_bytes": [sum(each) for each in _changes(timeline, 1)],
        "freed_bytes": [sum(each) for each in _changes(timeline, -1)],
    }
    if timeline.order == tuple(order):
        return dict(found)
    places = [timeline.places.get(task) for task in order]
    return {name: [None if at is None else column[at] for at in places] for name, column in found.items()}


def _changes(timeline: Timeline, sign: int) -> list[list[int]]:
    """By place the sizes of what was born in it (1), or freed (-1)."""
    found: list[list[int]] = [[] for _ in timeline.order]
    for event, delta in enumerate(timeline.deltas):
        place = timeline.place_of(event)
        if 0 <= place < len(found) and sign * delta > 0:
            found[place].append(sign * delta)
    return found
