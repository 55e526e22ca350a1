"""A run as a file: versioned JSON in columns, written in a stream, compressed when large."""

from __future__ import annotations

import dataclasses
import gzip
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import torch

from ...inspector.graph.graph_file import meta_fields, write_graph
from ...inspector.graph.json_columns import ColumnWriter
from ..memory.timeline_file import write_accumulation, write_timeline
from .run import Run
from .statistics import EDGES, Form
from .statistics_table import StatisticsTable
from .trace import Trace

FORMAT = "tapescope.trace"
VERSION = 1

_LARGE = 2**20  # bytes; what is larger is compressed
_NUMBERS = ("low", "high", "mean", "norm")


def save(run: Run, path: str | Path) -> Path:
    """Writes one JSON object, ASCII, as gzip if it is larger than a MiB, whatever the file is called:

    - `format`, `version`: "tapescope.trace" and 1. A reader that finds a higher version should refuse it.
    - `torch`: the version that ran it. `policy`, `engine`, `elapsed_ns`: as in `Run`; `note`, too, or null.
    - `accumulate`, `release`: as in `Accumulation`; missing where they are PyTorch's.
    - `order`: the ids of the tasks as they ran; `planned`: the policy's order, null where it is the same.
    - `graph`: see `write_graph`.
    - `trace`: null where none was recorded. `level` and the columns as in `Trace` and `Columns`; `order` is null where
      it is the run's. `terms`: [first place, policy, rule or null, whether it has keys]; a user's own choice has none.
      `key`: of each term that has, one after the other, for each arrival a rank, of which the policy takes the least
      first; of equal ones as `binary_heap.py` says. `labels`: [text, "task", "arrival" or null]. `forms`: null for what
      the graph says, or for each gradient null or [shape, dtype, device, layout]. `hooks`: [kind, name]. `edits`:
      [task, input, form, row, form, row], before and after, with forms as in `forms` and rows of `statistics` or -1.
      `buckets`: [wrapper, index, tasks, missing, delayed, nbytes] as in `Bucket`.
      `statistics`: null at level "off", else the columns of `StatisticsColumns`, `forms` as [shape, dtype, device,
      layout], with the number of elements behind that where the shape does not tell it, `unavailable`: [row, why], and
      `edges` of the histograms' bins.
    - `batches`: null or missing where each task ran alone. `ran`: [kind, tasks, launches before, launches, copied
      bytes, held bytes, elapsed_ns] as in `Batch`; `fallbacks`: [kind, tasks, why].
    - `timeline`: null or missing where memory was not measured; see `write_timeline`. `Run.footprints` are not kept.
    - `elsewhere`: missing where memory was measured on one device; how many other `devices` there are, and by number
      `timeline 0`, `timeline 1`, ...

    NaN is null, infinity "inf" and "-inf", in columns of numbers. What was at `path` before is replaced when all is
    written.
    """
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            out = _Out(file)
            _write_run(ColumnWriter(out.write), run)
            out.close()
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


class _Out:
    """A file that turns into gzip where it gets large."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._small: BytesIO | None = BytesIO()
        self._large: gzip.GzipFile | None = None

    def write(self, text: str) -> None:
        piece = text.encode("ascii")
        if self._large is not None:
            self._large.write(piece)
        elif self._small is not None:
            self._small.write(piece)
            if self._small.tell() > _LARGE:
                self._large = gzip.GzipFile("", "wb", 4, self._file, mtime=0)
                self._large.write(self._small.getbuffer())
                self._small = None

    def close(self) -> None:
        if self._large is not None:
            self._large.close()
        elif self._small is not None:
            self._file.write(self._small.getbuffer())


def _write_run(writer: ColumnWriter, run: Run) -> None:
    with writer.object():
        writer.value("format", FORMAT)
        writer.value("version", VERSION)
        writer.value("torch", torch.__version__)
        writer.value("policy", run.policy)
        writer.value("note", run.note or None)
        writer.value("engine", run.engine)
        writer.value("elapsed_ns", run.elapsed_ns)
        write_accumulation(writer, run.accumulation)
        writer.column("order", run.order)
        if run.planned == run.order:
            writer.value("planned", None)
        else:
            writer.column("planned", run.planned)
        with writer.object("graph"):
            write_graph(writer, run.graph)
        if run.trace is None:
            writer.value("trace", None)
        else:
            with writer.object("trace"):
                _write_trace(writer, run.trace, run.order)
        if run.batches is None:
            writer.value("batches", None)
        else:
            with writer.object("batches"):
                writer.value("ran", [dataclasses.astuple(batch) for batch in run.batches])
                writer.value("fallbacks", [dataclasses.astuple(each) for each in run.batches.fallbacks])
        if run.timeline is None:
            writer.value("timeline", None)
        else:
            with writer.object("timeline"):
                write_timeline(writer, run.timeline, run.order)
        if run.elsewhere:
            with writer.object("elsewhere"):
                writer.value("devices", len(run.elsewhere))
                for number, (timeline, _) in enumerate(run.elsewhere):
                    with writer.object(f"timeline {number}"):
                        write_timeline(writer, timeline, run.order)


def _write_trace(writer: ColumnWriter, trace: Trace, order: Sequence[int]) -> None:
    columns = trace.columns
    writer.value("terms", [(term.begins, term.policy, term.rule, term.key is not None) for term in trace.terms])
    arrivals = len(columns.arrivals)
    writer.column("key", (rank for term in trace.terms if term.key is not None for rank in _ranks(term.key, arrivals)))
    writer.value("level", trace.level)
    for column in fields(columns):
        entries = getattr(columns, column.name)
        if column.name == "order" and tuple(entries) == tuple(order):
            writer.value("order", None)
        else:
            writer.column(column.name, entries)
    writer.value("labels", trace.labels)
    writer.column("forms", (None if forms is None else list(map(_form_fields, forms)) for forms in trace.forms))
    writer.value("hooks", trace.hooks)
    writer.column(
        "edits",
        (
            [
                edit.task,
                edit.input,
                _form_fields(edit.before),
                edit.before_row,
                _form_fields(edit.after),
                edit.after_row,
            ]
            for edit in trace.edits
        ),
    )
    writer.value("buckets", [dataclasses.astuple(bucket) for bucket in trace.buckets])
    if trace.level == "off":
        writer.value("statistics", None)
    else:
        with writer.object("statistics"):
            _write_statistics(writer, trace.table.snapshot())


def _write_statistics(writer: ColumnWriter, table: StatisticsTable) -> None:
    writer.column("forms", map(_form_fields, table.forms))
    writer.column("unavailable", ([row, reason] for row, reason in table.unavailable.items()))
    writer.floats("edges", EDGES)
    for column in fields(table.columns):
        write = writer.floats if column.name in _NUMBERS else writer.column
        write(column.name, getattr(table.columns, column.name))


def _form_fields(form: Form | None) -> list[Any] | None:
    if form is None:
        return None
    count = () if form.elements is None else (form.elements,)
    return [*meta_fields(form.meta), str(form.layout).removeprefix("torch."), *count]


def _ranks(key: Callable[[int], Any], count: int) -> array[int]:
    """Numbers that compare as the keys do: keys may be any integers, of which JavaScript would lose some."""
    keys = [key(arrival) for arrival in range(count)]
    ranks = array("i", [0]) * count
    rank, last = -1, None
    for arrival in sorted(range(count), key=keys.__getitem__):
        if keys[arrival] != last:
            rank, last = rank + 1, keys[arrival]
        ranks[arrival] = rank
    return ranks
