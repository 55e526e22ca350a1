"""Runs as traces for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from io import TextIOWrapper
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ...inspector.files import atomic_write
from ...inspector.graph.graph import Task
from ...inspector.graph.operations_and_calls import Operation, resolve_sources
from ...inspector.validation import expect
from ..memory.timeline import Timeline
from .pandas_tables import TaskClock
from .run import Run

PROCESS = 1
"""The process of all events: a viewer draws counters beside the tracks of their process."""

SHORTEST_NS = 10
"""The shortest slice: an arrow's end in it must be later than the slice's start and before its end."""

_GAP_NS = 2
"""The gap between slices: viewers read times as floating-point microseconds, whose last digit may be lost."""

_MICROSECOND = 1000

Event = dict[str, Any]


@dataclass(slots=True)
class _Track:
    """Slices one after the other, because the format needs those of a thread to nest."""

    name: str
    number: int
    ended_ns: int = -1


@dataclass(slots=True)
class TraceEvents:
    """Collects slices, counters and arrows, and returns events in order of time.

    Args:
        title: the title of the process.
    """

    title: str
    _tracks: dict[str, list[_Track]] = field(default_factory=dict)
    _events: list[tuple[int, Event]] = field(default_factory=list)
    _numbers: int = 0
    _arrows: int = 0

    def track(self, name: str) -> None:
        """Add the next track from the top. Tracks not added here follow in the order of their first slice."""
        if name not in self._tracks:
            self._tracks[name] = [self._new_track(name)]

    def _new_track(self, name: str) -> _Track:
        self._numbers += 1
        return _Track(name, self._numbers)

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, category: str, what: Mapping[str, Any]) -> Event:
        """Add a slice. The slices of a track must be added in order of their starts. A slice that begins before the
        last one has ended is placed on a new track beside it.
        """
        self.track(track)
        lanes = self._tracks[track]
        end_ns = max(end_ns, start_ns + SHORTEST_NS)
        lane = next((each for each in lanes if each.ended_ns <= start_ns), None)
        if lane is None:
            lane = self._new_track(f"{track}, {len(lanes) + 1}")
            lanes.append(lane)
        lane.ended_ns = end_ns
        event = _event("X", name, start_ns, lane.number, cat=category, dur=(end_ns - start_ns - _GAP_NS) / _MICROSECOND)
        event["args"] = dict(what)
        self._events.append((start_ns, event))
        return event

    def counter(self, name: str, ns: int, values: Mapping[str, int]) -> None:
        """Add the new values of a counter; each call for one counter must have the same names."""
        self._events.append((ns, _event("C", name, ns, 0) | {"args": dict(values)}))

    def arrow(self, name: str, start: Event, end: Event) -> None:
        """Add an arrow from one slice to another."""
        self._arrows += 1
        for phase, event in (("s", start), ("f", end)):
            ns = round(event["ts"] * _MICROSECOND) + 1  # inside the slice, whose start is rounded up in viewers
            arrow = _event(phase, name, ns, event["tid"], cat=name, id=self._arrows)
            self._events.append((ns, arrow | ({"bp": "e"} if phase == "f" else {})))

    def in_order(self) -> Iterable[Event]:
        """Return the events: names first, then everything else by time."""
        yield _event("M", "process_name", 0, 0) | {"args": {"name": self.title}}
        for track in (each for lanes in self._tracks.values() for each in lanes):
            yield _event("M", "thread_name", 0, track.number) | {"args": {"name": track.name}}
            yield _event("M", "thread_sort_index", 0, track.number) | {"args": {"sort_index": track.number}}
        self._events.sort(key=lambda each: each[0])  # stable: events of one time keep their order
        yield from (event for _, event in self._events)


def _event(phase: str, name: str, ns: int, track: int, **fields: Any) -> Event:
    return {"ph": phase, "name": name, "pid": PROCESS, "tid": track, "ts": ns / _MICROSECOND} | fields


def save_events(events: TraceEvents, path: str | Path, about: Mapping[str, str]) -> Path:
    """Write the JSON object that viewers open, one event per line, as gzip if the name ends in .gz. An existing file at
    `path` is replaced once everything is written. `about`: metadata for the reader.
    """
    path = Path(path)
    with atomic_write(path) as file, gzip.open(file, "wb") if path.suffix == ".gz" else nullcontext(file) as packed:
        text = TextIOWrapper(packed, encoding="ascii", newline="\n")
        text.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(dict(about))},"traceEvents":[')
        encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dump encodes in Python
        for number, event in enumerate(events.in_order()):
            text.write(",\n" if number else "\n")
            text.write(encode(event))
        text.write("\n]}\n")
        text.detach()  # after a flush; the caller closes the file
    return path


ENDINGS = ".perfetto.json", ".perfetto.json.gz"
"""The endings of file names that request such a trace."""

STEP_TRACK, _FORWARD = "step", "forward"
_NO_CLOCK_NS = 1000
_NO_CLOCK = "no clock was recorded: each task has one microsecond, in execution order"
REAL_TIME = "real time, measured with tapescope's overhead"


def save_run(run: Run, path: str | PathLike[str]) -> Path:
    """Save a run as `Run.save_perfetto` does."""
    path = perfetto_path(path)
    events = TraceEvents(f"backward: {run.policy}, {run.engine} engine")
    clock = TaskClock.of(run)
    drawn = RunEvents(events, run, clock, 0)
    drawn.shift_ns = -drawn.first_ns
    drawn.add()
    return save_events(events, path, trace_metadata(_NO_CLOCK if clock is None else REAL_TIME))


def perfetto_path(path: str | PathLike[str]) -> Path:
    expect(path, str | PathLike, "path", "a file name, such as run.perfetto.json")
    return Path(fspath(path))


def trace_metadata(clock: str) -> dict[str, str]:
    import torch

    return {"producer": "tapescope", "torch": torch.__version__, "clock": clock}


@dataclass(slots=True)
class RunEvents:
    """Adds a run to the events.

    Attributes:
        clock: the run's clock; None without one.
        shift_ns: nanoseconds added to all times; before that, 0 is the first task's start.
    """

    events: TraceEvents
    run: Run
    clock: TaskClock | None
    shift_ns: int

    @property
    def first_ns(self) -> int:
        """The earliest time of the run."""
        found = [0, *(start for _, start, _ in self._operations()[:1])]
        if self.clock is not None:
            found += [each.event_ns[0] - each.task_ns[0] for each in self.run.timelines.values() if _has_clock(each)]
        return min(found)

    def add(self, with_memory: bool = True) -> None:
        operations = self._operations()
        made: dict[Operation, Event] = {}
        if operations:
            self.events.track(_FORWARD)
        for operation, start, end in operations:
            what = {"module": None if operation.call is None else operation.call.full_path}
            what["source"] = None if operation.source is None else operation.source.short
            start, end = start + self.shift_ns, end + self.shift_ns
            made[operation] = self.events.slice(_FORWARD, operation.name, start, end, "forward", known(what))
        for task, event in self._add_tasks():
            if isinstance(task.operation, Operation) and task.operation in made:
                self.events.arrow("made", made[task.operation], event)
        run = self.run
        for place, count in enumerate(run.queue_lengths):  # the ready tasks at each task's start, including itself
            self.events.counter("ready", self._start(place), {"tasks": count})
        left = 0 if run.trace is None else len(run.trace.columns.arrivals) - len(run.trace.order)
        self.events.counter("ready", self._start(len(run.order)), {"tasks": left})
        if with_memory:
            for timeline in self.run.timelines.values():
                self._add_memory(timeline)

    def _operations(self) -> list[tuple[Operation, int, int]]:
        """Return the operations of the forward that created tasks, with start and end; none without a clock for
        them."""
        if self.clock is None or self.clock.began_ns is None:
            return []
        tasks = self.run.graph.tasks
        found = dict.fromkeys(each.operation for each in tasks if isinstance(each.operation, Operation))
        resolve_sources(found)
        began = self.clock.began_ns
        return sorted(((each, each.began_ns - began, each.created_ns - began) for each in found), key=lambda it: it[1])

    def _start(self, place: int) -> int:
        """Return the start of a task; after the last place, the end of all."""
        if place == len(self.run.order):
            return max((self._end(each) for each in range(place)), default=self.shift_ns)
        return self.shift_ns + (place * _NO_CLOCK_NS if self.clock is None else self.clock.starts[place])

    def _end(self, place: int) -> int:
        """Return the end of a task, or its start if its end was not recorded."""
        end = (place + 1) * _NO_CLOCK_NS if self.clock is None else self.clock.ends[place]
        return self._start(place) if end is None else end + self.shift_ns

    def _add_tasks(self) -> Iterator[tuple[Task, Event]]:
        graph, order, trace = self.run.graph, self.run.order, self.run.trace
        trace = trace if trace is not None and trace.order == order else None  # compared once, not for each task
        threads = trace.columns.thread if trace is not None and any(trace.columns.thread) else ()
        for place in sorted(range(len(order)), key=self._start):
            task = graph.tasks[order[place]]
            name = task.short_name if task.is_leaf else task.name
            start, end = self._start(place), self._end(place)
            what = self._what(task, place, None if trace is None else trace[place].reason)
            track = f"backward on {task.device}"
            if threads:
                track += f", thread {threads[task.id]}"
            if self.clock is None:
                track += f", {_NO_CLOCK}"
            yield task, self.events.slice(track, name, start, end, "backward", what)

    def _what(self, task: Task, place: int, why: str | None) -> dict[str, Any]:
        run = self.run
        what: dict[str, Any] = {
            "task": task.id,
            "place": place,
            "parameter": task.parameter,
            "module": run.graph.module(task),
            "source": None if task.source is None else task.source.short,
            "operation": None if task.operation is None else task.operation.name,
            "takes": ", ".join(map(str, task.inputs)),
            "ready": run.queue_lengths[place],
            "why": why,
        }
        if run.timeline is not None and (at := run.timeline.places.get(task.id)) is not None:
            levels, starts = run.timeline.levels, run.timeline.starts
            what["bytes before"], what["bytes after"] = levels[starts[at]], levels[starts[at + 1]]
            what["peak bytes"] = run.timeline.task_peaks[at]
        return known(what)

    def _add_memory(self, timeline: Timeline) -> None:
        """Add counters of the memory after each event, and of each category at each task's peak."""
        name, levels = f"memory of {timeline.device}", timeline.levels
        if self.clock is None or not _has_clock(timeline):
            for place, start in enumerate(timeline.starts):
                self.events.counter(name, self._start(place), {"bytes": levels[start]})
            return
        times = [self.shift_ns + ns - timeline.task_ns[0] for ns in timeline.event_ns]
        for level, ns in zip(levels[1:], times, strict=True):
            self.events.counter(name, max(ns, 0), {"bytes": level})
        for place, highest in enumerate(timeline.task_peaks):
            begin = timeline.starts[place]
            event = levels.index(highest, begin)
            ns = times[event - 1] if event > begin else self._start(place)
            parts = {category.title: column[place] for category, column in timeline.category_levels.items()}
            self.events.counter(f"{name} by category", ns, parts)


def _has_clock(timeline: Timeline) -> bool:
    return bool(timeline.event_ns and timeline.task_ns)


def known(what: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in what.items() if value is not None}
