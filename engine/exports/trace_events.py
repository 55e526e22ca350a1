"""The events of which a trace for Perfetto and chrome://tracing is made.

The Trace Event Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Of it are used
complete events (`X`), counters (`C`), flows (`s`, `f`) and the names of processes and threads (`M`).
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

PROCESS = 1
"""All is of one process: a viewer draws counters beside the tracks of theirs."""

SHORTEST_NS = 10
"""Of a slice: what is to be seen in it, the end of an arrow, has to be later than its start, and before its end."""

_GAP_NS = 2
"""Between slices. Viewers take times as floating-point microseconds, of which the last digit may get lost."""

_MICROSECOND = 1000

Event = dict[str, Any]


@dataclass(slots=True)
class _Track:
    """Slices one after the other: the format wants those of a thread to nest."""

    name: str
    number: int
    ended_ns: int = -1


@dataclass(slots=True)
class TraceEvents:
    """Takes slices, counters and arrows, and gives events in order of time.

    Args:
        title: of the process.
    """

    title: str
    _tracks: dict[str, list[_Track]] = field(default_factory=dict)
    _events: list[tuple[int, Event]] = field(default_factory=list)
    _numbers: int = 0
    _arrows: int = 0

    def track(self, name: str) -> None:
        """The next track from above. Those of slices that nobody has named come in the order of their first slice."""
        if name not in self._tracks:
            self._tracks[name] = [self._new_track(name)]

    def _new_track(self, name: str) -> _Track:
        self._numbers += 1
        return _Track(name, self._numbers)

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, category: str, what: Mapping[str, Any]) -> Event:
        """Something that took time. On each track they are given in order of their starts; one that begins before the
        last has ended gets a track of its own beside it.
        """
        self.track(track)
        lanes = self._tracks[track]
        end_ns = max(end_ns, start_ns + SHORTEST_NS)
        lane = next((each for each in lanes if each.ended_ns <= start_ns), None)
        if lane is None:
            lane = self._new_track(f"{track}, {len(lanes) + 1}")
            lanes.append(lane)
        lane.ended_ns = end_ns
        event = _event("X", name, start_ns, lane.number, cat=category, dur=_micro(end_ns - start_ns - _GAP_NS))
        event["args"] = dict(what)
        self._events.append((start_ns, event))
        return event

    def counter(self, name: str, ns: int, values: Mapping[str, int]) -> None:
        """From now on these numbers hold; of one counter always the same ones are given."""
        self._events.append((ns, _event("C", name, ns, 0) | {"args": dict(values)}))

    def arrow(self, name: str, start: Event, end: Event) -> None:
        """From one slice to another one."""
        self._arrows += 1
        for phase, event in (("s", start), ("f", end)):
            ns = round(event["ts"] * _MICROSECOND) + 1  # in the slice, of which viewers see the start later
            arrow = _event(phase, name, ns, event["tid"], cat=name, id=self._arrows)
            self._events.append((ns, arrow | ({"bp": "e"} if phase == "f" else {})))

    def in_order(self) -> Iterable[Event]:
        """Names first, then all else by time."""
        yield _event("M", "process_name", 0, 0) | {"args": {"name": self.title}}
        for track in (each for lanes in self._tracks.values() for each in lanes):
            yield _event("M", "thread_name", 0, track.number) | {"args": {"name": track.name}}
            yield _event("M", "thread_sort_index", 0, track.number) | {"args": {"sort_index": track.number}}
        self._events.sort(key=lambda each: each[0])  # stable: what was given first is first
        yield from (event for _, event in self._events)


def _event(phase: str, name: str, ns: int, track: int, **fields: Any) -> Event:
    return {"ph": phase, "name": name, "pid": PROCESS, "tid": track, "ts": _micro(ns)} | fields


def _micro(ns: int) -> float:
    return ns / _MICROSECOND


def save_events(events: TraceEvents, path: str | Path, about: Mapping[str, str]) -> Path:
    """Writes the JSON object that viewers open, an event a line; as gzip if the file is called so. What was at `path`
    before is replaced when all is written. `about`: what a reader should know of it.
    """
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with _open(unfinished, packed=path.suffix == ".gz") as file:
            _write(file, events, about)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _open(path: Path, packed: bool) -> TextIO:
    return gzip.open(path, "wt", encoding="ascii") if packed else path.open("w", encoding="ascii")


def _write(file: TextIO, events: TraceEvents, about: Mapping[str, str]) -> None:
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(dict(about))},"traceEvents":[')
    for number, event in enumerate(events.in_order()):
        file.write(",\n" if number else "\n")
        json.dump(event, file, separators=(",", ":"), allow_nan=False)
    file.write("\n]}\n")
