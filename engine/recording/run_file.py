"""Saving and loading runs: `Run.save` and `ts.load`."""

from __future__ import annotations

import dataclasses
import gzip
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import IO, Any, get_args

import torch

from ...inspector.files import atomic_write, load_file, path_of
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Graph
from ...inspector.graph.graph_file import meta_fields, meta_of, read_graph, write_graph
from ...inspector.graph.json_file import ColumnWriter, Section, read_section
from ..execution.run_hooks import Hook
from ..memory.timeline import Timeline
from ..memory.timeline_file import read_accumulation, read_timeline, write_accumulation, write_timeline
from ..schedule.ddp_buckets import Bucket
from ..schedule.policy import Key
from .batch_report import Batch, Batches, Fallback, GroupKind
from .run import Engine, Run
from .statistics import BINS, EDGES, Form, Level
from .statistics_table import StatisticsColumns, StatisticsTable
from .task_records import Trace
from .trace_columns import Columns, EditRow, Forms, Label, PolicyTerm

FORMAT = "tapescope.trace"
VERSION = 1

_LARGE = 2**20  # bytes above which a file is compressed
_NUMBERS = ("low", "high", "mean", "norm")


def save(run: Run, path: str | Path) -> Path:
    """Write one ASCII JSON object, as gzip if it is larger than a MiB, whatever the file's name:

    - `format`, `version`: "tapescope.trace" and 1. A reader that finds a higher version should refuse it.
    - `torch`: the version that ran it. `policy`, `engine`, `elapsed_ns`: as in `Run`; `note` likewise, or null.
    - `accumulate`, `release`: as in `Accumulation`; missing if they are PyTorch's.
    - `order`: the ids of the tasks as they ran; `planned`: the policy's order, null if it is the same.
    - `graph`: see `write_graph`.
    - `trace`: null if none was recorded. `level` and the columns as in `Trace` and `Columns`; `order` is null if it is
      the run's. `terms`: [first place, policy, rule or null, whether it has keys]; a user's own choice has no keys.
      `key`: for each term with keys, one after the other, a rank for each arrival; the policy chooses the lowest rank
      first, and equal ranks as described in `ready_queue.py`. `labels`: [text, "task", "arrival" or null]. `forms`:
      null for the graph's metadata, or for each gradient null or [shape, dtype, device, layout]. `hooks`: [kind, name].
      `edits`: [task, input, form, row, form, row], before and after, with forms as in `forms` and rows of `statistics`
      or -1. `buckets`: [wrapper, index, tasks, missing, delayed, nbytes] as in `Bucket`.
      `statistics`: null at level "off", else the columns of `StatisticsColumns`, `forms` as [shape, dtype, device,
      layout], followed by the number of elements if it does not follow from the shape, `unavailable`: [row, why], and
      `edges` of the histograms' bins.
    - `batches`: null or missing if each task ran alone. `ran`: [kind, tasks, launches before, launches, copied bytes,
      held bytes, elapsed_ns] as in `Batch`; `fallbacks`: [kind, tasks, why].
    - `timeline`: null or missing if memory was not measured; see `write_timeline`. `Run.footprints` are not saved.
    - `elsewhere`: missing if memory was measured on one device only; `devices` is the number of other devices, followed
      by `timeline 0`, `timeline 1`, ...

    In columns of numbers, NaN is null and infinity "inf" or "-inf". An existing file at `path` is replaced once
    everything is written.
    """
    with atomic_write(path) as file:
        out = _Out(file)
        _write_run(ColumnWriter(out.write), run)
        out.close()
    return Path(path)


class _Out:
    """A file that switches to gzip when it becomes large."""

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
            table = trace.table.snapshot()
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
    """Return ranks that compare like the keys, which may be integers too large for JavaScript."""
    keys = [key(arrival) for arrival in range(count)]
    ranks = array("i", [0]) * count
    rank, last = -1, None
    for arrival in sorted(range(count), key=keys.__getitem__):
        if keys[arrival] != last:
            rank, last = rank + 1, keys[arrival]
        ranks[arrival] = rank
    return ranks


_MOST_DEVICES = 2**16  # as torch numbers them
_LARGEST = 2**30  # unpacked bytes of a file; a task with histograms has about 400, and a million tasks should fit


def load(path: str | Path) -> Run:
    """Load a run that `Run.save` wrote. Its graph has no nodes, so it can be inspected but not run.

    Nothing in the file is executed, and no file that it names is opened.

    Args:
        path: the file, compressed or not.

    Raises:
        ValueError: If the file is not a saved run, is truncated, was written by a newer tapescope, or is inconsistent.
        OSError: If the file cannot be read.
    """
    path = path_of(path, "ts.load")
    with collector_paused():
        return load_file(path, "a run", _LARGEST, lambda content: _read_run(read_section(content)))


def _read_run(section: Section) -> Run:
    section.check_format(FORMAT, VERSION)
    graph = read_graph(section.section("graph"))
    order = section.integers("order", len(graph), distinct=True)
    planned = section.integers("planned", len(graph), distinct=True) if "planned" in section else order
    engine: Engine = section.one_of("engine", get_args(Engine))
    policy = section.text("policy")
    note = section.text("note") if "note" in section else ""
    elapsed_ns = section.number("elapsed_ns")
    batches = None
    if "batches" in section:
        part, tasks = section.section("batches"), len(graph)
        ran = tuple(_batch(part, row, tasks) for row in part.rows("ran"))
        batches = Batches(ran, tuple(_fallback(part, row, tasks) for row in part.rows("fallbacks")))
    trace = _read_trace(section.section("trace"), graph, order, batches) if "trace" in section else None
    timeline = read_timeline(section.section("timeline"), graph, order) if "timeline" in section else None
    accumulation = read_accumulation(section)
    elsewhere: list[Timeline] = []
    if "elsewhere" in section:
        part = section.section("elsewhere")
        for number in range(part.number("devices", high=_MOST_DEVICES)):
            elsewhere.append(read_timeline(part.section(f"timeline {number}"), graph, order))
    devices = [each.device for each in (timeline, *elsewhere) if each is not None]
    if elsewhere and (timeline is None or len(set(devices)) < len(devices)):
        raise section.wrong("elsewhere", f"must have each device once, has {', '.join(devices)}")
    return Run(
        graph,
        policy,
        engine,
        tuple(order),
        tuple(planned),
        elapsed_ns,
        trace,
        timeline,
        accumulation=accumulation,
        batches=batches,
        note=note,
        elsewhere=tuple((each, None) for each in elsewhere),
    )


def _batch(section: Section, row: Any, tasks: int) -> Batch:
    match row:
        case [str(kind), [_, *_] as members, int(before), int(launches), int(copied), int(held), int(elapsed_ns)]:
            if kind in get_args(GroupKind) and all(type(task) is int and 0 <= task < tasks for task in members):
                return Batch(kind, tuple(members), before, launches, copied, held, elapsed_ns)  # type: ignore[arg-type]
    raise section.wrong("ran", f"has an entry that is not a batch: {row!r:.80}")


def _fallback(section: Section, row: Any, tasks: int) -> Fallback:
    match row:
        case [str(kind), [_, *_] as members, str(why)]:
            if kind in get_args(GroupKind) and all(type(task) is int and 0 <= task < tasks for task in members):
                return Fallback(kind, tuple(members), why)  # type: ignore[arg-type]
    raise section.wrong("fallbacks", f"has an entry that is not a fallback: {row!r:.80}")


def _read_trace(section: Section, graph: Graph, order: array[int], batches: Batches | None) -> Trace:
    level: Level = section.one_of("level", get_args(Level))
    labels = tuple(_label(section, row) for row in section.rows("labels"))
    hooks = tuple(_hook(section, row) for row in section.rows("hooks"))
    forms = tuple(_forms(section, row) for row in section.rows("forms"))
    if not forms or forms[0] is not None:
        raise section.wrong("forms", "does not begin with null")
    table = _read_statistics(section.section("statistics")) if "statistics" in section else StatisticsTable()
    columns = _read_columns(section, graph, level, order, labels, forms, hooks, len(table))
    _check_rows(section, graph, columns, forms, len(table))
    edits = tuple(_edit(section, row, graph, len(table)) for row in section.rows("edits"))
    return Trace(
        graph,
        _terms(section, len(columns.order), len(columns.arrivals)),
        level,
        columns,
        labels,
        forms,
        hooks,
        edits,
        table,
        tuple(_bucket(section, row, len(graph)) for row in section.rows("buckets")),
        batches or Batches(),
    )


def _read_columns(
    section: Section,
    graph: Graph,
    level: Level,
    order: array[int],
    labels: Sequence[Label],
    forms: Sequence[Forms | None],
    hooks: Sequence[Hook],
    rows: int,
) -> Columns:
    tasks = len(graph)
    measured = 0 if level == "off" else tasks
    arrivals = section.integers("arrivals", tasks, distinct=True)
    hook_task = section.integers("hook_task", tasks)
    return Columns(
        order=section.integers("order", tasks, distinct=True) if "order" in section else order,
        started_ns=section.integers("started_ns", _MOST, low=-1, length=tasks, code="q"),
        ended_ns=section.integers("ended_ns", _MOST, low=-1, length=tasks, code="q"),
        thread=section.integers("thread", tasks + 1, length=tasks),
        by_hand=section.integers("by_hand", 2, length=tasks, code="b"),
        arrived=section.integers("arrived", len(arrivals) + 1, length=tasks),
        inputs=section.integers("inputs", len(forms), length=tasks),
        outputs=section.integers("outputs", len(forms), length=tasks),
        input_row=section.integers("input_row", rows, low=-1, length=measured, code="q"),
        output_row=section.integers("output_row", rows, low=-1, length=measured, code="q"),
        arrivals=arrivals,
        label=section.integers("label", len(labels), length=len(arrivals)),
        hook_task=hook_task,
        hook=section.integers("hook", len(hooks), length=len(hook_task)),
    )


def _check_rows(section: Section, graph: Graph, columns: Columns, forms: Sequence[Forms | None], rows: int) -> None:
    """Check that a task's rows of statistics exist, one for each defined gradient."""
    given = [0 if each is None else sum(form is not None for form in each) for each in forms]
    for task_id, row in enumerate(columns.input_row):
        number = columns.inputs[task_id]
        if row + (given[number] if number else len(graph.tasks[task_id].inputs)) > rows and row >= 0:
            raise section.wrong("input_row", f"exceeds the statistics at task {task_id}")
    for task_id, row in enumerate(columns.output_row):
        number = columns.outputs[task_id]
        if row + (given[number] if number else len(graph.out_edges[task_id])) > rows and row >= 0:
            raise section.wrong("output_row", f"exceeds the statistics at task {task_id}")


def _terms(section: Section, places: int, arrivals: int) -> tuple[PolicyTerm, ...]:
    terms: list[PolicyTerm] = []
    rows = section.rows("terms")
    if not rows:
        raise section.wrong("terms", "is empty")
    keyed_terms = sum(isinstance(row, list) and row[-1:] == [True] for row in rows)
    if section.count("key") > arrivals * keyed_terms:
        raise section.wrong("terms", "don't fit the keys")
    ranks = section.integers("key", _MOST)
    for row in rows:
        match row:
            case [int(begins), str(policy), (None | str()) as rule, bool(keyed)]:
                low = terms[-1].begins + 1 if terms else 0
                if not low <= begins <= (places + 1 if terms else 0) or len(ranks) < arrivals * keyed:
                    raise section.wrong("terms", f"has an entry out of place: {row!r:.80}")
                terms.append(PolicyTerm(begins, policy, rule, _key(ranks[:arrivals]) if keyed else None))
                ranks = ranks[arrivals * keyed :]
            case _:
                raise section.wrong("terms", f"has an entry that is not a term: {row!r:.80}")
    if ranks:
        raise section.wrong("terms", "don't fit the keys")
    return tuple(terms)


def _key(ranks: array[int]) -> Callable[[int], Key]:
    return lambda arrival: (ranks[arrival],)


def _label(section: Section, row: Any) -> Label:
    match row:
        case [str(text), (None | "task" | "arrival") as number]:
            return Label(text, number)
    raise section.wrong("labels", f"has an entry that is not a label: {row!r:.80}")


def _hook(section: Section, row: Any) -> Hook:
    match row:
        case [str(kind), str(name)]:
            return Hook(kind, name)
    raise section.wrong("hooks", f"has an entry that is not a hook: {row!r:.80}")


def _forms(section: Section, row: Any) -> Forms | None:
    if row is None:
        return None
    if not isinstance(row, list):
        raise section.wrong("forms", f"has an entry that is not a list: {row!r:.80}")
    return tuple(None if each is None else _form(section, "forms", each) for each in row)


def _form(section: Section, key: str, row: Any) -> Form:
    match row:
        case [shape, dtype, device, str(layout), *count]:
            is_count = not count or (len(count) == 1 and type(count[0]) is int and count[0] >= 0)
            if layout in _LAYOUTS and is_count:
                return Form(meta_of(section, key, [shape, dtype, device]), _LAYOUTS[layout], *count)
    raise section.wrong(key, f"has an entry that is not the form of a tensor: {row!r:.80}")


def _edit(section: Section, row: Any, graph: Graph, rows: int) -> EditRow:
    match row:
        case [int(task), int(number), before, int(before_row), after, int(after_row)]:
            forms = [None if each is None else _form(section, "edits", each) for each in (before, after)]
            in_range = 0 <= task < len(graph) and 0 <= number < len(graph.tasks[task].inputs)
            if in_range and all(-1 <= each < rows for each in (before_row, after_row)):
                return EditRow(task, number, forms[0], before_row, forms[1], after_row)
    raise section.wrong("edits", f"has an invalid entry: {row!r:.80}")


def _bucket(section: Section, row: Any, tasks: int) -> Bucket:
    match row:
        case [int(wrapper), int(index), [*filled], int(missing), bool(delayed), int(nbytes)]:
            if all(type(task) is int and 0 <= task < tasks for task in filled):
                return Bucket(wrapper, index, tuple(filled), missing, delayed, nbytes)
    raise section.wrong("buckets", f"has an entry that is not a bucket: {row!r:.80}")


def _read_statistics(section: Section) -> StatisticsTable:
    forms = [_form(section, "forms", row) for row in section.rows("forms")]
    if tuple(section.floats("edges", len(EDGES))) != EDGES:
        raise section.wrong("edges", "differ from those of this version's histograms")
    form = section.integers("form", len(forms))
    count = len(form)
    bins = section.integers("bins", _MOST, code="q")

    def counts(name: str) -> array[int]:
        return section.integers(name, _MOST, length=count, code="q")

    columns = StatisticsColumns(
        form=form,
        low=section.floats("low", count),
        high=section.floats("high", count),
        mean=section.floats("mean", count),
        norm=section.floats("norm", count),
        nan_count=counts("nan_count"),
        inf_count=counts("inf_count"),
        zero_count=counts("zero_count"),
        first_bin=section.integers("first_bin", BINS, length=count, code="b"),
        bin_count=section.integers("bin_count", BINS + 1, low=-1, length=count, code="b"),
        bins_at=section.integers("bins_at", len(bins) + 1, length=count, code="q"),
        bins=bins,
    )
    for row, (first, length, start) in enumerate(
        zip(columns.first_bin, columns.bin_count, columns.bins_at, strict=True)
    ):
        if first + length > BINS or start + length > len(bins):
            raise section.wrong("bin_count", f"exceeds the bins at row {row}")
    unavailable = {}
    for entry in section.rows("unavailable"):
        match entry:
            case [int(row), str(reason)] if 0 <= row < count:
                unavailable[row] = reason
            case _:
                raise section.wrong("unavailable", f"has an invalid entry: {entry!r:.80}")
    return StatisticsTable(columns, forms, unavailable)


_MOST = 2**63


_LAYOUTS = {name: found for name, found in vars(torch).items() if isinstance(found, torch.layout)}
