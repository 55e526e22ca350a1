"""The recorder: records the work of an engine, task by task, as a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import get_ident
from time import perf_counter_ns

import torch
from torch import Tensor

from ...inspector.graph.graph import Graph, Task, TensorMeta
from ...inspector.torch_private.thread_state import function_mode_is_on, unobserved
from ..execution.run_hooks import Hook
from ..schedule.ddp_buckets import buckets_of
from ..schedule.policy import Choice, Key, Policy, arrival_label, creation_label, policy_name
from ..schedule.ready_queue import sort_key
from .batch_report import Batch, Batches, Fallback
from .fast_recorder import MOST_UNWRITTEN, FastRecorder, FastStatistics, Looks, LoopCalls, Unwritten
from .statistics import Form, Level, form_of, measure
from .statistics_table import StatisticsTable
from .task_records import Trace, usual_outputs
from .trace_columns import AS_IN_GRAPH, NONE, EditRow, Forms, Label, PolicyTerm, empty_columns

_LabelKey = tuple[str, str | None]

_FOLLOWING: dict[object, Callable[[Task], _LabelKey]] = {
    arrival_label: lambda task: ("@", "arrival"),
    creation_label: lambda task: ("leaf", None) if task.is_leaf else ("#", "task"),
}
"""The result of `_label_key` by the form of a queue's labels."""


class _PolicyPeriod:
    """The period in which one policy chooses. Keys are only stored for a dynamic policy, which would return others
    later."""

    def __init__(self, begins: int, policy: Policy | Choice) -> None:
        self.begins = begins
        self._policy = policy
        self._keys: list[Key] | None = [] if isinstance(policy, Policy) and policy.dynamic else None
        self.keeps_keys = self._keys is not None
        self.label_of = _FOLLOWING.get(policy.label) if isinstance(policy, Policy) else _FOLLOWING[arrival_label]

    def arrive(self, graph: Graph, task_id: int, arrival: int, key: Key | None) -> None:
        if self._keys is not None and isinstance(self._policy, Policy):
            self._keys.append(sort_key(self._policy, graph, task_id, arrival) if key is None else key)

    def forget(self, arrived: int) -> None:
        """Forget later arrivals: only `arrived` tasks have become ready after an undo."""
        if self._keys is not None:
            del self._keys[arrived:]

    def term(self, tasks: Sequence[Task], arrivals: Sequence[int]) -> PolicyTerm:
        policy = self._policy
        name = policy_name(policy)
        if not isinstance(policy, Policy):
            return PolicyTerm(self.begins, name, None, None)
        if self._keys is not None:  # later arrivals have no key under it
            keys = self._keys + [()] * (len(arrivals) - len(self._keys))
            return PolicyTerm(self.begins, name, policy.title, keys.__getitem__)
        key = policy.key
        return PolicyTerm(self.begins, name, policy.title, lambda arrival: key(tasks[arrivals[arrival]], arrival))


class Recorder:
    """Records the work of an engine, task by task. One per backward; several threads may call it.

    Calls for a task, in order: `arrive` when it becomes ready, `edit` if a gradient in its buffer is replaced, `start`
    when it is chosen, `hook` for each hook that runs, `end`. A recorder does not keep its arguments, so no gradient
    lives longer because of it.

    Args:
        graph: the graph that is run.
        policy: the policy that chooses tasks; the reasons name it.
        level: the level of the gradients' statistics. "off" costs about two microseconds per task.

    Attributes:
        batches, fallbacks: the tasks that ran as one, and those that did not; the engine adds them.
        unusual_tasks: tasks with waiting gradients that may differ from the graph's metadata; the engine adds them.
        apart: a context manager around the allocations of statistics, set when the backward's memory is measured.
    """

    def __init__(self, graph: Graph, policy: Policy | Choice, level: Level = "off") -> None:
        self.graph = graph
        self.level: Level = level
        self.batches: list[Batch] = []
        self.fallbacks: list[Fallback] = []
        self.unusual_tasks: set[int] = set()
        self.apart: Callable[[], AbstractContextManager[None]] = nullcontext
        self._tasks = graph.tasks
        self._buckets = buckets_of(graph)
        self._out_edges = graph.out_edges
        self._measures = level != "off"
        self._columns = empty_columns(len(graph), level)
        self._running: dict[int, int] = {}  # by thread: the task that runs in it
        self._threads: dict[int, int] = {}
        self._base_ns: int | None = None
        self._periods = [_PolicyPeriod(0, policy)]
        self._unwritten = Unwritten([], [], {})
        self._written_ends = 0  # the place in the order of the task whose end the fast loop records next
        self._loop_thread = 0  # the number of the thread that runs the fast loop
        self._labels: dict[_LabelKey, int] = {}
        self._forms: dict[Forms | None, int] = {None: AS_IN_GRAPH}
        self._form_numbers: dict[tuple[object, ...], int] = {}  # by what `_metadata` returns
        self._hooks: dict[Hook, int] = {}
        self._edits: list[EditRow] = []
        self._edited_at: list[int] = []  # for each edit: the number of tasks started before it
        self._table = StatisticsTable()
        self._lock = threading.RLock()  # reentrant, as a user's label may read the trace

    def switch(self, policy: Policy | Choice, taken: int | None = None) -> None:
        """Switch to another policy. `taken`: the task that the engine had chosen before and not yet started."""
        with self._lock:
            self._write_labels()
            columns = self._columns
            period = _PolicyPeriod(len(columns.order) + (taken is not None), policy)
            if period.begins == self._periods[-1].begins:
                self._periods.pop()  # it chose no task
            self._periods.append(period)
            for arrival, task_id in enumerate(columns.arrivals):
                # Tasks that have run need no key; the new policy is asked only for those that still wait.
                waits = columns.started_ns[task_id] < 0
                period.arrive(self.graph, task_id, arrival, None if waits else ())

    def arrive(self, task_id: int, label: str, key: Key | None = None) -> None:
        """Record that a task became ready.

        Args:
            task_id: the task.
            label: its key in readable form.
            key: its sort key in the queue; under a dynamic policy it is computed here if missing.
        """
        with self._lock:
            self._periods[-1].arrive(self.graph, task_id, len(self._columns.arrivals), key)
            self._unwritten.labels[len(self._columns.arrivals)] = label
            self._columns.arrivals.append(task_id)
            if len(self._unwritten.labels) >= MOST_UNWRITTEN:
                self._write_labels()

    def start(self, task_id: int, gradients: Sequence[Tensor | None], by_hand: bool = False) -> None:
        """Record that a task was chosen; `gradients` is its input buffer before hooks."""
        columns = self._columns
        self._record_inputs(task_id, gradients)
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
        columns.started_ns[task_id] = now - self._begun(now)

    def _begun(self, now: int) -> int:
        """Return the start of the first task, which is `now` if none has started yet."""
        if self._base_ns is None:
            self._base_ns = now
        return self._base_ns

    @property
    def allows_fast_loop(self) -> bool:
        """True if `fast_recorder` can record everything that is needed."""
        return not (self._periods[-1].keeps_keys or function_mode_is_on())

    def knows_labels(self, arrived: int) -> bool:
        """Return whether `fast_recorder` needs no labels for a queue with this many arrivals. They then follow from the
        tasks and the order of arrival, and are created when they are read."""
        return self._periods[-1].label_of is not None and arrived == len(self._columns.arrivals)

    def fast_recorder(self) -> FastRecorder:
        """Return the fast recorder of this thread, used instead of `arrive`, `start` and `end` if `allows_fast_loop`.

        It refers to this recorder, so the engine must hold it, to avoid a reference cycle.
        """
        thread = get_ident()
        number = self._threads.setdefault(thread, len(self._threads))
        measured = FastStatistics(self.graph, self.level, self._table, self._columns) if self._measures else None
        looks = Looks(self._record_inputs, self._record_outputs, self._number, self.unusual_tasks, measured)
        begin, failed = partial(self._begin_loop, number), partial(self._running.__setitem__, thread)
        calls = LoopCalls(begin, self.knows_labels, self.write_rows, failed)
        return FastRecorder(self._out_edges, self._columns, looks, self._unwritten, calls)

    def _begin_loop(self, thread: int) -> None:
        self._loop_thread, self._written_ends = thread, len(self._columns.order)

    def write_rows(self) -> None:
        """Write the rows that the fast loop has added to the columns, and many labels."""
        with self._lock:
            columns, unwritten, thread = self._columns, self._unwritten, self._loop_thread
            ends, starts = unwritten.ends[:], unwritten.starts[:]  # in this order, so that each end has its start
            del unwritten.ends[: len(ends)], unwritten.starts[: len(starts)]
            if starts or ends:
                base_ns = self._begun(starts[2] if starts else ends[0])
                columns.order.extend(starts[::3])
                for task_id, arrived, now in zip(starts[::3], starts[1::3], starts[2::3], strict=True):
                    columns.arrived[task_id] = arrived
                    columns.started_ns[task_id] = now - base_ns
                    columns.thread[task_id] = thread
                for task_id, now in zip(columns.order[self._written_ends :], ends, strict=False):
                    columns.ended_ns[task_id] = now - base_ns
                self._written_ends += len(ends)
            if len(unwritten.labels) >= MOST_UNWRITTEN:
                self._write_labels()

    def hook(self, kind: str, name: str) -> None:
        """Record a hook of the task that runs in this thread."""
        task_id = self._running.get(get_ident())
        if task_id is None:
            raise RuntimeError(f"{kind} hook {name} was recorded, but no task is running in this thread")
        with self._lock:
            self._columns.hook_task.append(task_id)
            self._columns.hook.append(self._hooks.setdefault(Hook(kind, name), len(self._hooks)))

    def edit(self, task_id: int, before: Sequence[Tensor | None], after: Sequence[Tensor | None]) -> None:
        """Record that gradients in the buffer of a task that has not run were replaced by hand."""
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if old is not new:
                self._edits.append(EditRow(task_id, number, *self._one(old), *self._one(new)))
                self._edited_at.append(len(self._columns.order))

    def forget_edits(self, task_id: int) -> None:
        """Forget the edits of a task since the last task started."""
        now = len(self._columns.order)
        self._keep_edits(
            [edit.task != task_id or at != now for edit, at in zip(self._edits, self._edited_at, strict=True)]
        )

    def rewind(self, position: int) -> None:
        """Undo all but the first `position` tasks."""
        with self._lock:
            self._write_labels()
            columns = self._columns
            undone = list(columns.order[position:])
            if not undone:
                return
            arrived = columns.arrived[undone[0]]
            columns.take_back(undone, arrived)
            while self._periods[-1].begins > position:
                self._periods.pop()
            for period in self._periods:
                period.forget(arrived)
            self._keep_edits([place <= position for place in self._edited_at])

    def _keep_edits(self, keep: Sequence[bool]) -> None:
        self._edits = [edit for edit, kept in zip(self._edits, keep, strict=True) if kept]
        self._edited_at = [place for place, kept in zip(self._edited_at, keep, strict=True) if kept]

    def end(self, outputs: Sequence[Tensor | None]) -> None:
        """Record the end of the task in this thread. `outputs` has one per entry of `next_functions`, after hooks."""
        now = perf_counter_ns()
        task_id = self._running.pop(get_ident(), None)
        if task_id is None or self._base_ns is None:
            raise RuntimeError("cannot end a task: none is running in this thread")
        columns = self._columns
        self._record_outputs(task_id, outputs)
        if self._measures:
            columns.output_row[task_id] = self._measure(outputs)
        columns.ended_ns[task_id] = now - self._base_ns

    def end_together(self, task_ids: Sequence[int], outputs: Sequence[Sequence[Tensor | None]]) -> None:
        """Record that these tasks, all started in this thread, ended as one. Each has an equal part of the time since
        the last of them started."""
        now = perf_counter_ns()
        if self._running.pop(get_ident(), None) != task_ids[-1] or self._base_ns is None:
            raise RuntimeError("cannot end tasks together: they are not running in this thread")
        columns = self._columns
        begun = columns.started_ns[task_ids[-1]]
        part = (now - self._base_ns - begun) // len(task_ids)
        for place, (task_id, its) in enumerate(zip(task_ids, outputs, strict=True)):
            columns.started_ns[task_id] = begun + place * part
            self._record_outputs(task_id, its)
            if self._measures:
                columns.output_row[task_id] = self._measure(its)
            columns.ended_ns[task_id] = begun + (place + 1) * part

    def trace(self) -> Trace:
        """Return the trace so far. Later tasks are not added to it."""
        with self._lock:
            self.write_rows()
            self._write_labels()
            columns = self._columns.copy()
            return Trace(
                self.graph,
                tuple(period.term(self._tasks, columns.arrivals) for period in self._periods),
                self.level,
                columns,
                tuple(Label(*label) for label in self._labels),
                tuple(self._forms),
                tuple(self._hooks),
                tuple(self._edits),
                self._table,
                self._buckets,
                Batches(tuple(self.batches), tuple(self.fallbacks)),
                self._base_ns,
            )

    def _record_inputs(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        if not _are_as(gradients, self._tasks[task_id].inputs):
            self._columns.inputs[task_id] = self._number(gradients)

    def _record_outputs(self, task_id: int, outputs: Sequence[Tensor | None]) -> None:
        if not outputs:
            return
        edges, tasks = self._out_edges[task_id], self._tasks
        usual: Sequence[TensorMeta | None]
        if len(edges) == len(outputs):
            usual = [tasks[edge.next_task].inputs[edge.input] for edge in edges]
        else:
            usual = usual_outputs(self.graph, task_id)
        if not _are_as(outputs, usual):
            self._columns.outputs[task_id] = self._number(outputs)

    def _write_labels(self) -> None:
        """Write the labels of the last arrivals to their column."""
        with self._lock:
            columns, new = self._columns, self._unwritten.labels
            first, arrivals = len(columns.label), columns.arrivals[len(columns.label) :]
            follows, tasks, labels = self._periods[-1].label_of, self._tasks, self._labels
            keys: list[_LabelKey] = []
            for arrival, task_id in enumerate(arrivals, first):
                key = ("", None) if follows is None else follows(tasks[task_id])
                label = new.get(arrival)
                if label is not None and label != Label(*key).of(task_id, arrival):
                    key = _label_key(label, task_id, arrival)
                keys.append(key)
            # A label may be the user's code. It can read the trace, which calls this again and stores the same labels.
            if len(columns.label) > first:  # a user's label read the trace, which took the labels
                return
            columns.label.extend([labels.setdefault(key, len(labels)) for key in keys])
            for arrival in range(first, len(columns.label)) if new else ():
                new.pop(arrival, None)

    def _measure(self, gradients: Sequence[Tensor | None]) -> int:
        """Measure gradients and return their first row in the table."""
        with self.apart():
            found = [measure(gradient, self.level) for gradient in gradients if gradient is not None]
            return self._table.add(found) if found else NONE

    def _number(self, gradients: Sequence[Tensor | None]) -> int:
        metadata = _metadata(gradients)
        number = None if metadata is None else self._form_numbers.get(metadata)
        if number is None:
            with unobserved():
                forms = tuple(None if gradient is None else form_of(gradient) for gradient in gradients)
            with self._lock:
                number = self._forms.setdefault(forms, len(self._forms))
            if metadata is not None:
                self._form_numbers[metadata] = number
        return number

    def _one(self, gradient: Tensor | None) -> tuple[Form | None, int]:
        if gradient is None:
            return None, NONE
        if self.level != "off":
            with self.apart():
                measurement = measure(gradient, self.level)
                return measurement.form, self._table.add([measurement])
        with unobserved():
            return form_of(gradient), NONE


def _label_key(label: str, task_id: int, arrival: int) -> _LabelKey:
    if not label[-1:].isdigit():
        return label, None
    for name, number in (("task", str(task_id)), ("arrival", str(arrival))):
        if label.endswith(number):
            return label[: -len(number)], name
    return label, None


def _metadata(gradients: Sequence[Tensor | None]) -> tuple[object, ...] | None:
    """Return the facts on which the gradients' forms depend; None if reading them might run other code or fail."""
    if function_mode_is_on() or not all(gradient is None or type(gradient) is Tensor for gradient in gradients):
        return None
    try:
        return tuple(
            [
                None if gradient is None else (gradient.shape, gradient.dtype, gradient.device, gradient.layout)
                for gradient in gradients
            ]
        )
    except RuntimeError:  # a nested tensor has no shape
        return None


def _are_as(gradients: Sequence[Tensor | None], usual: Sequence[TensorMeta | None]) -> bool:
    """Return whether the gradients match the graph's metadata; False if in doubt."""
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
