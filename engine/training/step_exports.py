"""A training step as tables: a row for each phase, or for each block of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from ...inspector.validation import expect_choice
from ..memory.categories import OF_A_STEP
from ..recording.pandas_tables import TaskClock, frame_of
from ..recording.perfetto import (
    REAL_TIME,
    STEP_TRACK,
    RunEvents,
    TraceEvents,
    known,
    perfetto_path,
    save_events,
    trace_metadata,
)
from .step import TrainingStep, step_began_ns
from .step_memory import Phase, StepTimeline

StepTable = Literal["phases", "blocks", "tasks"]

_SECOND = 1e9
_COLUMNS = "step", "device", "phase", "optimizer", "started_s", "ended_s", "bytes_before", "bytes_after", "peak_bytes"


def step_frame(step: TrainingStep, table: StepTable = "phases") -> Any:
    """Return the frame of `TrainingStep.to_pandas`."""
    expect_choice(table, get_args(StepTable), "table")
    if table == "tasks":
        return step.run.to_pandas()
    if table == "phases":
        return steps_frame([step])
    rows = step.records()
    columns = {name: [row[name] for row in rows] for name in ("device", "number", "bytes", "category", "born", "died")}
    columns |= {f"{each}_s": [_seconds(row[f"{each}_ns"]) for row in rows] for each in ("born", "died")}
    return frame_of(columns | {"at_peak": [row["at_peak"] for row in rows]})


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _SECOND


def steps_frame(steps: Sequence[TrainingStep]) -> Any:
    """Return a frame with a row for each phase of each step on each device."""
    rows = [row for step in steps for timeline in step.timelines.values() for row in _phases(step.number, timeline)]
    used = {each for step in steps for timeline in step.timelines.values() for each in timeline.kinds}
    names = [*_COLUMNS, *(each for each in OF_A_STEP if each in used)]
    return frame_of({name: [row[name] for row in rows] for name in names})


def _phases(number: int, timeline: StepTimeline) -> Iterator[dict[str, Any]]:
    """Yield a row for each phase; one that occurs several times has several rows. Categories are those at the phase's
    peak.
    """
    end = Phase("", len(timeline.events), timeline.elapsed_ns)
    levels = timeline.levels
    for phase, following in pairwise((*timeline.phases, end)):
        within = levels[phase.event : following.event + 1]
        peak = phase.event + within.index(max(within))
        row = {
            "step": number,
            "device": timeline.device,
            "phase": phase.name,
            "optimizer": phase.optimizer,
            "started_s": phase.start_ns / _SECOND,
            "ended_s": following.start_ns / _SECOND,
            "bytes_before": within[0],
            "bytes_after": within[-1],
            "peak_bytes": levels[peak],
        }
        parts = {kind: column[peak] for kind, column in timeline.category_levels.items()}
        yield row | dict.fromkeys(OF_A_STEP, 0) | parts


def save_steps(steps: Sequence[TrainingStep], path: str | PathLike[str]) -> Path:
    """Write training steps one after another, for `TrainingStep.save_perfetto` and `ts.record_steps`."""
    path = perfetto_path(path)
    if not steps:
        raise ValueError("no step has been recorded: steps are there when the `with` block has ended")
    events = TraceEvents("training steps" if len(steps) > 1 else "training step")
    events.track(STEP_TRACK)
    now, about = 0, trace_metadata(REAL_TIME)
    for step in steps:
        _add_phases(events, step, now)
        for timeline in step.timelines.values():
            _add_step_memory(events, timeline, now)
        try:
            run = step.run
        except ValueError as error:
            about[f"step {step.number}"] = str(error)
        else:
            clock = TaskClock.of(run)
            if clock is not None and clock.base_ns is not None:
                RunEvents(events, run, clock, now + clock.base_ns - step_began_ns(step)).add(with_memory=False)
        now += step.timeline.elapsed_ns
    return save_events(events, path, about)


def _add_phases(events: TraceEvents, step: TrainingStep, now: int) -> None:
    timeline = step.timeline
    ends = [*(each.start_ns for each in timeline.phases[1:]), timeline.elapsed_ns]
    for phase, end in zip(timeline.phases, ends, strict=True):
        what = {"step": step.number, "optimizer": phase.optimizer or None}
        events.slice(STEP_TRACK, phase.name, now + phase.start_ns, now + end, "step", known(what))


def _add_step_memory(events: TraceEvents, timeline: StepTimeline, now: int) -> None:
    """Add a counter of the bytes of each category after each event."""
    levels = timeline.category_levels
    for event, ns in enumerate((0, *timeline.event_ns)):
        parts = {category: column[event] for category, column in levels.items()}
        events.counter(f"memory of {timeline.device}", now + max(ns, 0), parts)
