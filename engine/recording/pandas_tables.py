"""Runs and graphs as pandas tables with one row per task, and the start and end of each task."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import torch

from ...inspector.graph.graph import Graph
from ...inspector.graph.operations_and_calls import Operation, resolve_sources
from ...inspector.torch_private.sequence_numbers import UNNUMBERED
from ..memory.device_choice import chosen_device
from ..memory.timeline import Timeline
from .run import Run
from .task_records import Trace, usual_outputs
from .trace_columns import Forms, term_at


def pandas_itself() -> Any:
    """Import pandas.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_pandas() needs pandas: pip install 'tapescope[notebook]', or pip install pandas"
        ) from error
    return pandas


def frame_of(columns: Mapping[str, Sequence[Any]], integers: Sequence[str] = ()) -> Any:
    """Return a table of these columns. `integers`: integer columns in which numbers may be missing."""
    pandas = pandas_itself()
    frame = pandas.DataFrame({name: list(column) for name, column in columns.items()})
    return frame.astype({name: "Int64" for name in integers if name in columns})


@dataclass(frozen=True, slots=True)
class TaskClock:
    """The start and end of each task by place, in nanoseconds since the first one started.

    Attributes:
        starts: the start of each task.
        ends: the end of each task; None if it was not recorded.
        base_ns: the time of 0 on the memory's clock; None if the memory is not on this clock.
        began_ns: the value of `time.perf_counter_ns` at 0; None if unknown, as for a run from a file.
    """

    starts: Sequence[int]
    ends: Sequence[int | None]
    base_ns: int | None = None
    began_ns: int | None = None

    @staticmethod
    def of(run: Run) -> TaskClock | None:
        """Return the memory's clock if it has one, else the trace's; None if the run has neither."""
        timeline, trace = run.timeline, run.trace
        if timeline is not None and timeline.task_ns and timeline.order == run.order:
            base = timeline.task_ns[0]
            began = None if timeline.began_ns is None else timeline.began_ns + base
            if began is None and trace is not None and trace.order == run.order and run.order:
                began = _began(trace)
            starts = [ns - base for ns in timeline.task_ns[::2]]
            return TaskClock(starts, [ns - base for ns in timeline.task_ns[1::2]], base, began)
        return None if trace is None or trace.order != run.order else TaskClock.of_trace(trace)

    @staticmethod
    def of_trace(trace: Trace) -> TaskClock:
        """Return the trace's clock."""
        started, ended = trace.columns.started_ns, trace.columns.ended_ns
        first = min((started[task] for task in trace.order), default=0)
        starts = [started[task] - first for task in trace.order]
        ends = [None if ended[task] < 0 else ended[task] - first for task in trace.order]
        return TaskClock(starts, ends, None, _began(trace))


def _began(trace: Trace) -> int | None:
    """Return the start of the first task of a trace."""
    if trace.began_ns is None or not trace.order:
        return None
    return trace.began_ns + min(trace.columns.started_ns[task] for task in trace.order)


Columns = dict[str, Sequence[Any]]

_INTEGERS = (
    *("sequence_nr", "line", "bytes_before", "bytes_after", "peak_bytes", "allocated_bytes", "freed_bytes"),
    *("output_nan", "output_inf"),
)
_SECOND = 1e9


def trace_frame(trace: Trace) -> Any:
    """Return the table of `Trace.to_pandas`."""
    clock = TaskClock.of_trace(trace)
    return frame_of(_of_graph(trace.graph, trace.order) | _of_trace(trace) | _times(clock), _INTEGERS)


def run_frame(run: Run, device: torch.device | str | None = None) -> Any:
    """Return the table of `Run.to_pandas`.

    Raises:
        ValueError: If the memory of this device was not measured.
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


def graph_frame(graph: Graph) -> Any:
    """Return the table of `Graph.to_pandas`."""
    columns = _of_graph(graph, range(len(graph)))
    del columns["place"]
    return frame_of(columns, _INTEGERS)


def _of_graph(graph: Graph, order: Sequence[int]) -> Columns:
    """Return the columns that are known without running the tasks."""
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
        # a leaf has the highest possible number
        "sequence_nr": [None if task.is_leaf or task.sequence_nr >= UNNUMBERED else task.sequence_nr for task in tasks],
        "device": [str(task.device) for task in tasks],
        "created_s": [nan if task.created_ns is None else task.created_ns / _SECOND for task in tasks],
    }


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
    """Return the norm over all input gradients of each task and over all its outputs, and the number of NaN and
    infinite elements in the outputs."""
    table = trace.table.snapshot()
    columns, tasks = trace.columns, trace.graph.tasks
    given = [
        _rows(trace, task, columns.inputs, columns.input_row, lambda _, task: tasks[task].inputs)
        for task in trace.order
    ]
    made = [_rows(trace, task, columns.outputs, columns.output_row, usual_outputs) for task in trace.order]
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
    """Return the rows of statistics of a task's gradients, one for each defined gradient."""
    first = rows[task] if rows else -1
    if first < 0:
        return range(0)
    found: Forms | None = trace.forms[forms[task]]
    looks = usual(trace.graph, task) if found is None else found
    return range(first, first + sum(each is not None for each in looks))


def _times(clock: TaskClock) -> Columns:
    return {
        "started_s": [ns / _SECOND for ns in clock.starts],
        "ended_s": [nan if ns is None else ns / _SECOND for ns in clock.ends],
    }


def _of_memory(timeline: Timeline, order: Sequence[int]) -> Columns:
    """Return the level at each task's start, at the next one's start, and the peak between; and the bytes that
    changed."""
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
    """Return by place the sizes of the storages allocated in it (`sign` 1) or freed in it (-1)."""
    found: list[list[int]] = [[] for _ in timeline.order]
    for event, delta in enumerate(timeline.deltas):
        place = timeline.place_of(event)
        if 0 <= place < len(found) and sign * delta > 0:
            found[place].append(sign * delta)
    return found
