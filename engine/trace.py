"""The trace: what happened to each task of one backward, in columns, so that a million tasks fit."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from threading import get_ident
from time import perf_counter_ns
from typing import NamedTuple

import torch
from torch import Tensor

from ..inspector.graph import Graph, Task, TensorMeta
from ..inspector.torch_internals import function_mode_is_on, unobserved
from .buckets import Bucket, Reduction, buckets_of, reductions
from .policies import Choice, Key, Policy, QueueState, policy_name
from .ready_queue import ReadyQueue, ready_queue, sort_key
from .statistics import Form, Level, Statistics, form_of, measure
from .statistics_table import StatisticsTable

_NONE = -1  # no end was seen, or no row of statistics
_MOST_NEW = 4096  # labels
_AS_IN_GRAPH = 0  # the number of what the graph says of a task's gradients

Forms = tuple[Form | None, ...]
"""What the gradients of a task look like, None for those that are undefined."""


@dataclass(slots=True)
class Columns:
    """The numbers of a trace.

    Attributes:
        order: the ids of the tasks in the order in which they started.
        started_ns, ended_ns: by task id, since the first start; -1 for a task that did not start or end.
        thread: by task id; 0 is the thread in which the first task started.
        by_hand: by task id; 1 where somebody chose the task himself.
        arrived: by task id: how many tasks had got ready by its start.
        inputs, outputs: by task id: what the gradients look like: 0 for what the graph says, else an index into
            `Trace.forms`.
        input_row, output_row: by task id: where the statistics of its gradients begin, one row for each that is
            defined, or -1. Empty at level "off".
        arrivals: task ids in the order in which they got ready.
        label: for each arrival an index into `Trace.labels`.
        hook_task, hook: for each hook that ran the id of its task, and an index into `Trace.hooks`.
    """

    order: array[int]
    started_ns: array[int]
    ended_ns: array[int]
    thread: array[int]
    by_hand: array[int]
    arrived: array[int]
    inputs: array[int]
    outputs: array[int]
    input_row: array[int]
    output_row: array[int]
    arrivals: array[int]
    label: array[int]
    hook_task: array[int]
    hook: array[int]

    def copy(self) -> Columns:
        return Columns(*(getattr(self, column.name)[:] for column in fields(self)))


def empty_columns(tasks: int, level: Level) -> Columns:
    """The columns of a graph of so many tasks none of which has started."""
    measured = 0 if level == "off" else tasks
    return Columns(
        order=array("i"),
        started_ns=array("q", [_NONE]) * tasks,
        ended_ns=array("q", [_NONE]) * tasks,
        thread=array("i", [0]) * tasks,
        by_hand=array("b", [0]) * tasks,
        arrived=array("i", [0]) * tasks,
        inputs=array("i", [_AS_IN_GRAPH]) * tasks,
        outputs=array("i", [_AS_IN_GRAPH]) * tasks,
        input_row=array("q", [_NONE]) * measured,
        output_row=array("q", [_NONE]) * measured,
        arrivals=array("i"),
        label=array("i"),
        hook_task=array("i"),
        hook=array("i"),
    )


class Label(NamedTuple):
    """What labels of the queue have in common: the text before the task's id ("#12"), or before its arrival ("@3")."""

    text: str
    number: str | None  # "task", "arrival" or None


def _label_key(label: str, task_id: int, arrival: int) -> tuple[str, str | None]:
    for name, number in (("task", str(task_id)), ("arrival", str(arrival))):
        if label.endswith(number):
            return label[: -len(number)], name
    return label, None


class Hook(NamedTuple):
    """A hook that ran. `kind` is "tensor", "retain_grad", "pre", "post" or "post_accumulate"."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RecordedGradient:
    """A gradient as it was seen. `statistics` is None at level "off"."""

    meta: TensorMeta
    layout: torch.layout
    statistics: Statistics | None


@dataclass(frozen=True, slots=True)
class Edit:
    """A gradient that was replaced by hand before its task ran. `input` is the input number."""

    input: int
    before: RecordedGradient | None
    after: RecordedGradient | None


class EditRow(NamedTuple):
    """An edit as it is kept: forms, and rows of statistics or -1."""

    task: int
    input: int
    before: Form | None
    before_row: int
    after: Form | None
    after_row: int


class Recorder:
    """Takes down what an engine does, task by task. One for each backward; may be called in several threads.

    Order of calls for a task: `arrive` when it gets ready, `edit` if a gradient of its buffer is replaced, `start` when
    it is picked, `hook` for each hook that runs, `end`. What a recorder was given, it does not keep: no gradient lives
    longer for it.

    Args:
        graph: the graph that is run.
        policy: the policy that picks; names the reasons.
        level: of the gradients' statistics. "off" costs about two microseconds a task.
    """

    def __init__(self, graph: Graph, policy: Policy | Choice, level: Level = "off") -> None:
        self.graph = graph
        self.policy = policy
        self.policies = [policy_name(policy)]
        self.level: Level = level
        self._tasks = graph.tasks
        self._buckets = buckets_of(graph)
        self._out_edges = graph.out_edges
        self._measures = level != "off"
        self._columns = empty_columns(len(graph), level)
        self._running: dict[int, int] = {}  # by thread: the task that runs in it
        self._threads: dict[int, int] = {}
        self._base_ns: int | None = None
        self._keys: list[Key] | None = [] if isinstance(policy, Policy) and policy.dynamic else None
        self._new_labels: list[str] = []  # of the last arrivals, not yet in the column
        self._labels: dict[tuple[str, str | None], int] = {}
        self._forms: dict[Forms | None, int] = {None: _AS_IN_GRAPH}
        self._hooks: dict[Hook, int] = {}
        self._edits: list[EditRow] = []
        self._table = StatisticsTable()
        self._lock = threading.Lock()

    def switch(self, policy: Policy | Choice) -> None:
        """From now on this policy picks. The trace can then say who chose a task, but no longer which was first."""
        with self._lock:
            self.policies.append(policy_name(policy))

    def arrive(self, task_id: int, label: str, key: Key | None = None) -> None:
        """The task got ready. `label` is its key as people read it.

        `key` is what the queue sorts by; under a dynamic policy it is asked for here where it is not given.
        """
        with self._lock:
            if self._keys is not None and isinstance(self.policy, Policy):
                arrival = len(self._columns.arrivals)
                self._keys.append(sort_key(self.policy, self._tasks[task_id], arrival) if key is None else key)
            self._columns.arrivals.append(task_id)
            self._new_labels.append(label)
            if len(self._new_labels) >= _MOST_NEW:
                self._take_labels()

    def start(self, task_id: int, gradients: Sequence[Tensor | None], by_hand: bool = False) -> None:
        """The task was picked; `gradients` is its input buffer as it arrived."""
        columns = self._columns
        if not _are_as(gradients, self._tasks[task_id].inputs):
            columns.inputs[task_id] = self._number(gradients)
        if self._measures:
            columns.input_row[task_id] = self._measure(gradients)
        if by_hand:
            columns.by_hand[task_id] = True
        thread = get_ident()
        self._running[thread] = task_id
        if thread not in self._threads:
            self._threads.setdefault(thread, len(self._threads))
        columns.thread[task_id] = self._threads[thread]
        columns.arrived[task_id] = len(columns.arrivals)
        columns.order.append(task_id)
        now = perf_counter_ns()
        if self._base_ns is None:
            self._base_ns = now
        columns.started_ns[task_id] = now - self._base_ns

    def hook(self, kind: str, name: str) -> None:
        """A hook of the task that runs in this thread."""
        task_id = self._running.get(get_ident())
        if task_id is None:
            raise RuntimeError(f"no task runs in this thread whose {kind} hook {name} could be")
        with self._lock:
            self._columns.hook_task.append(task_id)
            self._columns.hook.append(self._hooks.setdefault(Hook(kind, name), len(self._hooks)))

    def edit(self, task_id: int, before: Sequence[Tensor | None], after: Sequence[Tensor | None]) -> None:
        """Gradients in the buffer of a task that has not run were replaced by hand."""
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if old is not new:
                self._edits.append(EditRow(task_id, number, *self._one(old), *self._one(new)))

    def end(self, outputs: Sequence[Tensor | None]) -> None:
        """The task that runs in this thread has ended. `outputs` has one per entry of `next_functions`, after hooks."""
        now = perf_counter_ns()
        task_id = self._running.pop(get_ident(), None)
        if task_id is None or self._base_ns is None:
            raise RuntimeError("no task runs in this thread that could end")
        columns = self._columns
        if outputs and not self._are_as_taken(outputs, task_id):
            columns.outputs[task_id] = self._number(outputs)
        if self._measures:
            columns.output_row[task_id] = self._measure(outputs)
        columns.ended_ns[task_id] = now - self._base_ns

    def trace(self) -> Trace:
        """What has been recorded so far. Later tasks are not added to it."""
        policy = self.policy
        with self._lock:
            self._take_labels()
            columns = self._columns.copy()
            switched = len(self.policies) > 1
            return Trace(
                self.graph,
                ", then ".join(self.policies),
                policy.title if isinstance(policy, Policy) and not switched else None,
                self.level,
                columns,
                tuple(Label(*label) for label in self._labels),
                tuple(self._forms),
                tuple(self._hooks),
                tuple(self._edits),
                self._table,
                None if switched else self._key_of(columns.arrivals),
                self._buckets,
            )

    def _key_of(self, arrivals: array[int]) -> Callable[[int], Key] | None:
        policy, tasks = self.policy, self._tasks
        if not isinstance(policy, Policy):
            return None
        if self._keys is not None:
            return list(self._keys).__getitem__
        return lambda arrival: policy.key(tasks[arrivals[arrival]], arrival)

    def _take_labels(self) -> None:
        columns = self._columns
        for arrival, label in enumerate(self._new_labels, len(columns.label)):
            key = _label_key(label, columns.arrivals[arrival], arrival)
            columns.label.append(self._labels.setdefault(key, len(self._labels)))
        self._new_labels.clear()

    def _are_as_taken(self, outputs: Sequence[Tensor | None], task_id: int) -> bool:
        """Whether each output is as the task it goes to takes it."""
        edges = self._out_edges[task_id]
        if len(edges) != len(outputs):
            return _are_as(outputs, usual_outputs(self.graph, task_id))
        tasks = self._tasks
        return _are_as(outputs, [tasks[edge.next_task].inputs[edge.input] for edge in edges])

    def _measure(self, gradients: Sequence[Tensor | None]) -> int:
        """Where the gradients' statistics begin in the table."""
        found = [measure(gradient, self.level) for gradient in gradients if gradient is not None]
        return self._table.add(found) if found else _NONE

    def _number(self, gradients: Sequence[Tensor | None]) -> int:
        with unobserved():
            forms = tuple(None if gradient is None else form_of(gradient) for gradient in gradients)
        with self._lock:
            return self._forms.setdefault(forms, len(self._forms))

    def _one(self, gradient: Tensor | None) -> tuple[Form | None, int]:
        if gradient is None:
            return None, _NONE
        if self.level != "off":
            measurement = measure(gradient, self.level)
            return measurement.form, self._table.add([measurement])
        with unobserved():
            return form_of(gradient), _NONE


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What happened to each task of one backward, in the order in which they started: a sequence of `TaskRecord`.

    The queue at each task is not kept but replayed from the order of arrival: looking at records one after the other
    costs what the queue's changes cost, going back starts from the front.

    Attributes:
        graph: the graph that was run.
        policy: the policy's name; `rule`: what it picks, in words; None for a user's own choice.
        level: of the gradients' statistics.
        columns: the numbers, see `Columns`, which `labels`, `forms` and `hooks` give a meaning.
        edits: the gradients that were replaced by hand.
        table: the gradients' statistics.
        key: from the number of an arrival to what the policy sorts by; None for a user's own choice.
        buckets: those of DistributedDataParallel that its leaves fill.
    """

    graph: Graph
    policy: str
    rule: str | None
    level: Level
    columns: Columns
    labels: tuple[Label, ...]
    forms: tuple[Forms | None, ...]
    hooks: tuple[Hook, ...]
    edits: tuple[EditRow, ...]
    table: StatisticsTable
    key: Callable[[int], Key] | None
    buckets: tuple[Bucket, ...] = ()

    def __len__(self) -> int:
        return len(self.columns.order)

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} of {len(self.graph)} tasks under {self.policy}, statistics {self.level}>"

    def __getitem__(self, place: int) -> TaskRecord:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no record {place}: {len(self)} tasks were recorded")
        return TaskRecord(self, place % len(self))

    def __iter__(self) -> Iterator[TaskRecord]:
        return (TaskRecord(self, place) for place in range(len(self)))

    @property
    def order(self) -> tuple[int, ...]:
        """The ids of the tasks in the order in which they started."""
        return tuple(self.columns.order)

    def of(self, task: Task | int) -> TaskRecord | None:
        """The record of a task; None if it has not run."""
        place = self._places.get(self.graph.task(task).id)
        return None if place is None else TaskRecord(self, place)

    def label(self, arrival: int) -> str:
        """The key of the arrival of this number, as people read it."""
        label = self.labels[self.columns.label[arrival]]
        if label.number is None:
            return label.text
        return f"{label.text}{arrival if label.number == 'arrival' else self.columns.arrivals[arrival]}"

    def queue(self, place: int) -> list[tuple[int, str]]:
        """The ready tasks before the task of this place was picked, each with its label, in the order in which the
        policy would run them; under a user's own choice in order of arrival. With place = len(trace) what is left."""
        return self._replay.entries(place)

    @cached_property
    def reductions(self) -> tuple[Reduction, ...]:
        """Which task completed each bucket of DistributedDataParallel, and which started its all-reduce."""
        ended = [task_id for task_id in self.columns.order if self.columns.ended_ns[task_id] >= 0]
        return reductions(self.buckets, ended)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {task_id: place for place, task_id in enumerate(self.columns.order)}

    @cached_property
    def _replay(self) -> _Replay:
        return _Replay(self)

    @cached_property
    def _hooks_by_task(self) -> dict[int, list[Hook]]:
        found: dict[int, list[Hook]] = {}
        for task_id, hook in zip(self.columns.hook_task, self.columns.hook, strict=True):
            found.setdefault(task_id, []).append(self.hooks[hook])
        return found

    def _gradient(self, form: Form | None, row: int) -> RecordedGradient | None:
        if form is None:
            return None
        return RecordedGradient(form.meta, form.layout, None if row < 0 else self.table.row(row))

    def _gradients(self, forms: Forms, rows: array[int], task_id: int) -> tuple[RecordedGradient | None, ...]:
        row = rows[task_id] if rows else _NONE
        found = []
        for form in forms:
            found.append(self._gradient(form, row))
            row += form is not None and row >= 0
        return tuple(found)


class _Replay:
    """The ready queue as it was, from the arrivals: at one place of the trace, from which it moves on."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lock = threading.Lock()
        self._begin()

    def length(self, place: int) -> int:
        with self._lock:
            return len(self._at(place))

    def first(self, place: int) -> int | None:
        """The task which the policy would run; None under a user's own choice, or if none is ready."""
        with self._lock:
            queue = self._at(place)
            return queue.choose() if self._trace.key is not None and len(queue) else None

    def holds(self, place: int, task_id: int) -> bool:
        with self._lock:
            return task_id in self._at(place)

    def entries(self, place: int) -> list[tuple[int, str]]:
        with self._lock:
            return [(entry.task.id, self._trace.label(entry.arrival)) for entry in self._at(place).entries()]

    def _begin(self) -> None:
        trace = self._trace
        self._place = self._arrived = 0
        policy: Policy | Choice = _nobody
        if (key := trace.key) is not None:
            policy = Policy(
                trace.policy, trace.rule or "", lambda task, arrival: key(arrival), lambda task, arrival: ""
            )
        self._queue: ReadyQueue = ready_queue(trace.graph, policy, ())

    def _at(self, place: int) -> ReadyQueue:
        if place < self._place:
            self._begin()
        columns = self._trace.columns
        while self._place < place:
            task_id = columns.order[self._place]
            self._arrive(columns.arrived[task_id])
            if task_id in self._queue:
                self._queue.remove(task_id)
            self._place += 1
        self._arrive(columns.arrived[columns.order[place]] if place < len(columns.order) else len(columns.arrivals))
        return self._queue

    def _arrive(self, arrived: int) -> None:
        for task_id in self._trace.columns.arrivals[self._arrived : arrived]:
            self._queue.push(task_id)
        self._arrived = max(arrived, self._arrived)


def _nobody(ready: Sequence[Task], state: QueueState) -> Task:
    raise AssertionError("a replay asks nobody")


@dataclass(frozen=True, slots=True, repr=False)
class TaskRecord:
    """What happened to one task. `place` counts from 0, in the order in which tasks started."""

    trace: Trace = field(repr=False)
    place: int

    def __repr__(self) -> str:
        elapsed = "running" if self.elapsed_ns is None else f"{self.elapsed_ns / 1e3:.1f} µs"
        return f"<{self.task!r}, {elapsed}, {self.reason}>"

    @property
    def task(self) -> Task:
        return self.trace.graph.tasks[self._id]

    @property
    def _id(self) -> int:
        return self.trace.columns.order[self.place]

    @property
    def started_ns(self) -> int:
        """Nanoseconds since the first task started."""
        return self.trace.columns.started_ns[self._id]

    @property
    def elapsed_ns(self) -> int | None:
        """Nanoseconds from start to end, with its hooks; None if it did not end."""
        ended_ns = self.trace.columns.ended_ns[self._id]
        return None if ended_ns < 0 else ended_ns - self.started_ns

    @property
    def thread(self) -> int:
        """In which thread it ran; 0 is that of the first task."""
        return self.trace.columns.thread[self._id]

    @property
    def device(self) -> torch.device:
        """Where PyTorch runs it: on the first accelerator among its gradients' devices (node.h, Node::device)."""
        devices = [meta.device for meta in self.task.inputs]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    @property
    def by_hand(self) -> bool:
        return bool(self.trace.columns.by_hand[self._id])

    @property
    def queue_before(self) -> list[tuple[int, str]]:
        """The tasks that were ready when it was picked, itself included: ids and labels, see `Trace.queue`."""
        return self.trace.queue(self.place)

    @property
    def queue_after(self) -> list[tuple[int, str]]:
        """The tasks that were ready when the next one was picked."""
        return self.trace.queue(self.place + 1)

    @property
    def reason(self) -> str:
        """Why it was picked."""
        trace, task_id = self.trace, self._id
        replay = trace._replay
        count = replay.length(self.place)
        if not replay.holds(self.place, task_id):
            return "ran before all of its gradients were seen to arrive"
        if self.by_hand:
            return f"chosen by hand out of {count}"
        if count == 1:
            return "the only ready task"
        if trace.key is None:
            return f"chosen by {trace.policy} out of {count}"
        first = replay.first(self.place)
        if first == task_id:
            return f"first of {count} under {trace.policy}: {trace.rule}"
        return f"not the first of {count} under {trace.policy}, which was task {first}"

    @property
    def inputs(self) -> tuple[RecordedGradient | None, ...]:
        """Its input buffer as it arrived, before hooks; None where there was no gradient."""
        trace = self.trace
        found = trace.forms[trace.columns.inputs[self._id]]
        forms = tuple(map(_form, self.task.inputs)) if found is None else found
        return trace._gradients(forms, trace.columns.input_row, self._id)

    @property
    def outputs(self) -> tuple[RecordedGradient | None, ...]:
        """What it gave, after hooks: one per entry of the node's `next_functions`. Empty if it did not end."""
        trace = self.trace
        if self.elapsed_ns is None:
            return ()
        found = trace.forms[trace.columns.outputs[self._id]]
        forms = tuple(map(_form, usual_outputs(trace.graph, self._id))) if found is None else found
        return trace._gradients(forms, trace.columns.output_row, self._id)

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks that ran, in order."""
        return tuple(self.trace._hooks_by_task.get(self._id, ()))

    @property
    def completed(self) -> tuple[Bucket, ...]:
        """The buckets of DistributedDataParallel whose last gradient it brought."""
        return tuple(each.bucket for each in self.trace.reductions if each.completed_by == self._id)

    @property
    def reduced(self) -> tuple[Bucket, ...]:
        """The buckets whose all-reduce started at its end: also those that were complete and had to wait."""
        return tuple(each.bucket for each in self.trace.reductions if each.started_by == self._id)

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The gradients that were replaced by hand before it ran."""
        trace, task_id = self.trace, self._id
        return tuple(
            Edit(edit.input, trace._gradient(edit.before, edit.before_row), trace._gradient(edit.after, edit.after_row))
            for edit in trace.edits
            if edit.task == task_id
        )


def _form(meta: TensorMeta | None) -> Form | None:
    return None if meta is None else Form(meta, torch.strided)


def usual_outputs(graph: Graph, task_id: int) -> list[TensorMeta | None]:
    """What a task gives if each output is as the task it goes to takes it, and the others are None."""
    usual: list[TensorMeta | None] = []
    for edge in graph.out_edges[task_id]:
        usual.extend([None] * (edge.output - len(usual)))
        usual.append(graph.tasks[edge.next_task].inputs[edge.input])
    return usual


def _are_as(gradients: Sequence[Tensor | None], usual: Sequence[TensorMeta | None]) -> bool:
    """Whether the gradients look as the graph says. When in doubt they don't."""
    if len(gradients) != len(usual) or function_mode_is_on():
        return False
    try:
        for gradient, meta in zip(gradients, usual, strict=False):
            if gradient is None or meta is None:
                if gradient is not meta:  # type: ignore[comparison-overlap]
                    return False
            elif (
                type(gradient) is not Tensor
                or gradient.shape != meta.shape
                or gradient.dtype is not meta.dtype
                or gradient.layout is not torch.strided
                or gradient.device != meta.device
            ):
                return False
    except RuntimeError:  # a nested tensor has no shape
        return False
    return True
