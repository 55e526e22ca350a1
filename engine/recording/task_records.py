"""The trace: a record of each task of one backward, with the ready queue at that time."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch

from ...errors import ending_where_called
from ...inspector.graph.graph import Graph, Task, TensorMeta
from ...inspector.renderers import drawn
from ...inspector.text.sizes_and_counts import counted, nth
from ...inspector.validation import expect_number
from ..execution.run_hooks import Hook
from ..schedule.ddp_buckets import Bucket, Reduction, reductions
from ..schedule.policy import Choice, Policy, QueueState
from ..schedule.ready_queue import ReadyQueue, ReadyTask, ready_queue
from .batch_report import Batch, Batches
from .slowest import Slowest, slowest_of
from .statistics import Form, Level, Statistics
from .statistics_table import StatisticsTable
from .trace_columns import NONE, Columns, EditRow, Forms, Label, PolicyTerm, term_at


class Replay:
    """The replayed queue at one place of a trace, which moves forward.

    When the policy changes, everything is replayed from the start under the new one, as the engines do: the order of
    equal keys depends on earlier operations of the heap.
    """

    def __init__(self, graph: Graph, columns: Columns, terms: Sequence[PolicyTerm]) -> None:
        self._graph = graph
        self._columns = columns
        self._terms = terms
        self._lock = threading.Lock()
        self._begin(terms[0])

    def length(self, place: int) -> int:
        with self._lock:
            return len(self._at(place))

    def first(self, place: int) -> int | None:
        """Return the task that the policy would run; None under a user's own choice, or if none is ready."""
        with self._lock:
            queue = self._at(place)
            return queue.choose() if self._term.key is not None and len(queue) else None

    def holds(self, place: int, task_id: int) -> bool:
        with self._lock:
            return task_id in self._at(place)

    def entries(self, place: int) -> list[ReadyTask]:
        """Return the entries in the order in which the policy would run them; in order of arrival for a user's own
        choice."""
        with self._lock:
            return self._at(place).entries()

    def _begin(self, term: PolicyTerm) -> None:
        self._term = term
        self._place = self._arrived = 0
        policy: Policy | Choice = _not_called
        if (key := term.key) is not None:
            policy = Policy(term.policy, term.rule or "", lambda task, arrival: key(arrival))
        self._queue: ReadyQueue = ready_queue(self._graph, policy, ())

    def _at(self, place: int) -> ReadyQueue:
        term = term_at(self._terms, place)
        if place < self._place or term is not self._term:
            self._begin(term)
        columns = self._columns
        while self._place < place:
            task_id = columns.order[self._place]
            self._arrive(columns.arrived[task_id])
            if task_id in self._queue:
                self._queue.remove(task_id)
            self._place += 1
        self._arrive(columns.arrived[columns.order[place]] if place < len(columns.order) else len(columns.arrivals))
        return self._queue

    def _arrive(self, arrived: int) -> None:
        for task_id in self._columns.arrivals[self._arrived : arrived]:
            self._queue.push(task_id)
        self._arrived = max(arrived, self._arrived)


def _not_called(ready: Sequence[Task], state: QueueState) -> Task:
    raise AssertionError("a replay does not call the user's policy")


@dataclass(frozen=True, slots=True)
class RecordedGradient:
    """The metadata of a recorded gradient; the tensor itself is not kept.

    Attributes:
        meta: its shape, dtype and device.
        layout: its layout.
        statistics: its statistics; None at level "off".
    """

    meta: TensorMeta
    layout: torch.layout
    statistics: Statistics | None


@dataclass(frozen=True, slots=True)
class Edit:
    """A gradient that was replaced by hand before its task ran.

    Attributes:
        input: the input number.
        before, after: the old and the new gradient; None for no gradient.
    """

    input: int
    before: RecordedGradient | None
    after: RecordedGradient | None


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The records of one backward's tasks, in the order in which they started: a sequence of `TaskRecord`.

    Not all hooks are recorded, see `TaskRecord.hooks`.

    The queue at each task is not stored but replayed from the order of arrival: reading records in order costs as much
    as the queue's changes; going back starts from the beginning.

    Attributes:
        graph: the graph that was run.
        terms: the policy that chose from each place on; most traces have one.
        level: the level of the gradients' statistics.
        columns: the numbers, see `Columns`; `labels`, `forms` and `hooks` define their meaning.
        edits: the gradients that were replaced by hand.
        table: the gradients' statistics.
        buckets: the buckets of DistributedDataParallel that its leaves fill.
        batches: the tasks that ran as one, and those that could have but did not; empty without `batch=`.
        began_ns: the value of `time.perf_counter_ns` when the first task started; None if unknown, as from a file.
    """

    graph: Graph
    terms: tuple[PolicyTerm, ...]
    level: Level
    columns: Columns
    labels: tuple[Label, ...]
    forms: tuple[Forms | None, ...]
    hooks: tuple[Hook, ...]
    edits: tuple[EditRow, ...]
    table: StatisticsTable
    buckets: tuple[Bucket, ...] = ()
    batches: Batches = field(default_factory=Batches)
    began_ns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.graph.for_result)

    def __len__(self) -> int:
        return len(self.columns.order)

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} of {len(self.graph)} tasks under {self.policy}, statistics {self.level}>"

    @ending_where_called
    def __getitem__(self, place: int) -> TaskRecord:
        expect_number(place, int, "place", "a task's place in the order; `trace.of(task)` finds the record of a task")
        if not -len(self) <= place < len(self):
            raise IndexError(f"unknown record {place}; {len(self)} tasks were recorded")
        return TaskRecord(self, place % len(self))

    def __iter__(self) -> Iterator[TaskRecord]:
        return (TaskRecord(self, place) for place in range(len(self)))

    @property
    def policy(self) -> str:
        """The policy's name; "bfs, then dfs" where a session switched."""
        return ", then ".join(term.policy for term in self.terms)

    @property
    def order(self) -> tuple[int, ...]:
        """The ids of the tasks in the order in which they started."""
        return tuple(self.columns.order)

    @property
    def by_hand(self) -> tuple[int, ...]:
        """The ids of the tasks that were chosen by hand, in order."""
        return tuple(task_id for task_id in self.columns.order if self.columns.by_hand[task_id])

    def of(self, task: Task | int) -> TaskRecord | None:
        """Return the record of a task; None if it has not run."""
        place = self._places.get(self.graph.task(task).id)
        return None if place is None else TaskRecord(self, place)

    def label(self, arrival: int) -> str:
        """Return the label of an arrival, its key in readable form, under the policy of that time."""
        return self.labels[self.columns.label[arrival]].of(self.columns.arrivals[arrival], arrival)

    def queue(self, place: int) -> list[tuple[int, str]]:
        """Return the ready tasks before the task at this place was chosen, with labels, in the order in which the
        policy would run them; in order of arrival for a user's own choice. place = len(trace) returns the rest."""
        return [(entry.task.id, self.label(entry.arrival)) for entry in self._replay.entries(place)]

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per task, in the order in which they started.

        Columns of the task: `place`, `task` (its id), `name`, `parameter`, `module`, `operation`, `file`, `line`,
        `function`, `sequence_nr` (none for leaves), `device`, `created_s` (the seconds from the start of the forward to
        the creation of its node, see `Task.created_ns`). Columns of the run: `policy`, `by_hand`, `thread`, `ready`
        (the number of ready tasks, including itself), `started_s` and `ended_s` in seconds since the first one started.
        With statistics: `input_norm` and `output_norm`, the norms over all input gradients and all outputs, and
        `output_nan` and `output_inf`, the numbers of such elements in the outputs; missing if they cannot be read.
        `Run.to_pandas` also has memory.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
        """
        return drawn("trace as a table", self)

    def slowest(self, count: int = 5) -> Slowest:
        """Return the slowest operations, modules and tasks, as a table with sentences.

        Args:
            count: the number of rows of each kind.

        Raises:
            TypeError, ValueError: If `count` is not a number of at least 1.
        """
        return slowest_of(self.graph, ((record.task.id, record.elapsed_ns) for record in self), count)

    @cached_property
    def reductions(self) -> tuple[Reduction, ...]:
        """The task that completed each bucket of DistributedDataParallel, and the one that started its all-reduce."""
        ended = [task_id for task_id in self.columns.order if self.columns.ended_ns[task_id] >= 0]
        return reductions(self.buckets, ended)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {task_id: place for place, task_id in enumerate(self.columns.order)}

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self.graph, self.columns, self.terms)

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
        row = rows[task_id] if rows else NONE
        found = []
        for form in forms:
            found.append(self._gradient(form, row))
            row += form is not None and row >= 0
        return tuple(found)


ChoiceKind = Literal["hand", "batch", "only", "function", "first", "passed over", "unseen"]
"""The way in which a task was chosen, see `TaskRecord.choice`."""


@dataclass(frozen=True, slots=True, repr=False)
class TaskRecord:
    """The record of one task.

    Attributes:
        trace: the trace to which it belongs.
        place: its place in the order in which tasks started, from 0.
    """

    trace: Trace = field(repr=False)
    place: int

    def __repr__(self) -> str:
        elapsed = "running" if self.elapsed_ns is None else f"{self.elapsed_ns / 1e3:.1f} µs"
        return f"<{self.task!r}, {elapsed}, {self.reason}>"

    @property
    def task(self) -> Task:
        """The task."""
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
        """The number of its thread; 0 is the thread of the first task."""
        return self.trace.columns.thread[self._id]

    @property
    def device(self) -> torch.device:
        """The device on which PyTorch runs it, see `Task.device`. The direct engine runs all tasks in the caller's
        thread."""
        return self.task.device

    @property
    def by_hand(self) -> bool:
        """True if it was chosen by hand instead of by the policy."""
        return bool(self.trace.columns.by_hand[self._id])

    @property
    def queue_before(self) -> list[tuple[int, str]]:
        """The ids and labels of the tasks ready when it was chosen, including itself, see `Trace.queue`."""
        return self.trace.queue(self.place)

    @property
    def queue_after(self) -> list[tuple[int, str]]:
        """The ids and labels of the tasks ready when the next one was chosen."""
        return self.trace.queue(self.place + 1)

    @property
    def choice(self) -> ChoiceKind:
        """The way in which it was chosen.

        By "hand"; with the other tasks of its "batch"; as the "only" ready task; by a user's "function"; as the "first"
        under the policy; although it was not the first, which was "passed over"; or before the arrival of its gradients
        was recorded: "unseen".
        """
        trace, task_id = self.trace, self._id
        replay = trace._replay
        if not replay.holds(self.place, task_id):
            return "unseen"
        if self.by_hand:
            return "hand"
        if self._ran_with is not None:
            return "batch"
        if replay.length(self.place) == 1:
            return "only"
        if term_at(trace.terms, self.place).key is None:
            return "function"
        return "first" if replay.first(self.place) == task_id else "passed over"

    @property
    def reason(self) -> str:
        """The reason why it was chosen, in words."""
        trace, choice = self.trace, self.choice
        count = trace._replay.length(self.place)
        term = term_at(trace.terms, self.place)
        if choice == "unseen":
            return "ran before the arrival of all its gradients was recorded"
        if choice == "hand":
            return f"chosen by hand out of {count}"
        if (batch := self._ran_with) is not None:
            begins = nth(trace._places[batch.tasks[0]] + 1)
            return f"as one with {counted(len(batch.tasks) - 1, 'other task')}, from the {begins} on"
        if choice == "only":
            return "the only ready task"
        if choice == "function":
            return f"chosen by {term.policy} out of {count}"
        if choice == "first":
            return f"first of {count} under {term.policy}: {term.rule}"
        first = trace._replay.first(self.place)
        if first is None:
            return f"not {term.policy}'s choice among {count}"
        waits = any(batch.kind != "tree" for batch in trace.batches.of(first))
        which = trace.graph.describe(first, trace._places.get(first))
        held = ", held back for others of its batch" if waits else ""
        return f"not {term.policy}'s choice among {count}, which was {which}{held}"

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches in which it ran: one of its outputs may belong to a tree, the others to another batch."""
        return self.trace.batches.of(self._id)

    @property
    def _ran_with(self) -> Batch | None:
        """The batch in whose step it ran, if another of its tasks was chosen."""
        stacks = (batch for batch in self.batches if batch.kind != "tree" and batch.tasks[0] != self._id)
        return next(stacks, None)

    @property
    def inputs(self) -> tuple[RecordedGradient | None, ...]:
        """Its input buffer before hooks; None for undefined gradients."""
        trace = self.trace
        found = trace.forms[trace.columns.inputs[self._id]]
        forms = tuple(map(_form, self.task.inputs)) if found is None else found
        return trace._gradients(forms, trace.columns.input_row, self._id)

    @property
    def outputs(self) -> tuple[RecordedGradient | None, ...]:
        """Its outputs after hooks, one per entry of the node's `next_functions`. Empty if it did not end."""
        trace = self.trace
        if self.elapsed_ns is None:
            return ()
        found = trace.forms[trace.columns.outputs[self._id]]
        forms = tuple(map(_form, usual_outputs(trace.graph, self._id))) if found is None else found
        return trace._gradients(forms, trace.columns.output_row, self._id)

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks that ran, in order.

        Known limitations for hooks of non-leaf tensors: the native engine does not report hooks of freed tensors. The
        direct engine does not report builtins (`some_list.append`) and retained gradients, and reports none while a
        user's profiler is active (`sys.setprofile`).
        """
        return tuple(self.trace._hooks_by_task.get(self._id, ()))

    @property
    def completed(self) -> tuple[Bucket, ...]:
        """The buckets of DistributedDataParallel that it completed."""
        return tuple(each.bucket for each in self.trace.reductions if each.completed_by == self._id)

    @property
    def reduced(self) -> tuple[Bucket, ...]:
        """The buckets whose all-reduce started at its end, including completed ones that had to wait."""
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
    return None if meta is None else Form(replace(meta, any_dtype=False) if meta.any_dtype else meta, torch.strided)


def usual_outputs(graph: Graph, task_id: int) -> list[TensorMeta | None]:
    """Return a task's outputs if each matches its next task's input metadata; None for outputs without a next task."""
    usual: list[TensorMeta | None] = []
    for edge in graph.out_edges[task_id]:
        usual.extend([None] * (edge.output - len(usual)))
        usual.append(graph.tasks[edge.next_task].inputs[edge.input])
    return usual
