"""Recording of tasks that run in the fast loop: order, times and gradient statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableSequence, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...inspector.graph.graph import Edge, Graph
from ...inspector.torch_private.thread_state import dispatch_mode_is_on
from ..execution.gradient_layouts import is_dense
from .statistics import Level, form_of, measure, numbers_at_once
from .statistics_table import StatisticsTable
from .trace_columns import NONE, Columns


class _Measured(NamedTuple):
    """A measured input of the running task, with its position in memory and its version at that time."""

    start: int
    version: int
    gradient: Tensor
    numbers: Sequence[float]

    def is_all_of(self, other: Tensor) -> bool:
        """Return whether the other tensor has exactly these elements, in any order, and has not been modified since."""
        own = self.gradient
        return (
            other._version == self.version
            and other.dtype is own.dtype
            and other.numel() == own.numel()
            and not other.is_neg()
            and (other.is_contiguous() or is_dense(other.shape, other.stride()))
            and (own.is_contiguous() or is_dense(own.shape, own.stride()))
        )


class FastStatistics:
    """Measures the inputs and outputs of tasks while one thread runs them without hooks.

    A task's output is the next task's input if no other gradient is added to it; both then share one row. An output
    that is the task's input, or a view of all its elements, shares the input's numbers.

    Args:
        graph: the graph that is run.
        level: the level of the statistics.
        table, columns: the outputs.
    """

    def __init__(self, graph: Graph, level: Level, table: StatisticsTable, columns: Columns) -> None:
        self._level = level
        self._table = table
        self._columns = columns
        self._edges = graph.out_edges
        coming = [len(edges) for edges in graph.in_edges]
        for root in graph.roots:
            coming[root.task] += 1
        self._takes_one = [count == 1 == len(task.inputs) for count, task in zip(coming, graph.tasks, strict=True)]
        self._rows: dict[
            int, tuple[int, Sequence[float] | None]
        ] = {}  # by waiting task: row and numbers of its one gradient
        self._taken: list[_Measured] = []  # the inputs of the running task, until it ends
        self._forms: dict[tuple[torch.Size, torch.dtype], int] = {}
        self._at_once = False

    def begin(self) -> None:
        """Begin to record; nothing is known about waiting gradients."""
        self._rows.clear()
        self._taken.clear()
        # Without it, each measurement would enter a context, see `measure`.
        self._at_once = not torch.is_grad_enabled() and not dispatch_mode_is_on()

    def record_inputs(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        self._taken.clear()
        known = self._rows.pop(task_id, None)
        if known is None:
            row, all_numbers = self._measured(gradients)
        else:
            row, numbers = known
            all_numbers = [numbers]
        self._columns.input_row[task_id] = row
        if not self._edges[task_id]:  # it has no outputs
            return
        try:
            for gradient, numbers in zip(gradients, all_numbers, strict=True):
                if gradient is not None and numbers is not None:
                    self._taken.append(_Measured(gradient.data_ptr(), gradient._version, gradient, numbers))
        except RuntimeError:  # a tensor without a storage or without a version counter
            pass

    def record_outputs(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None:
        """Record a task's outputs. `unusual`: the edges that receive another tensor than the output."""
        row, all_numbers = self._measured(outputs)
        self._taken.clear()  # the loop releases the inputs next
        self._columns.output_row[task_id] = row
        output = 0
        for edge in self._edges[task_id]:
            while output < edge.output:
                row += outputs[output] is not None
                output += 1
            if self._takes_one[edge.next_task] and edge not in unusual:
                self._rows[edge.next_task] = row, all_numbers[output]

    def _measured(self, gradients: Sequence[Tensor | None]) -> tuple[int, list[Sequence[float] | None]]:
        """Measure gradients; return their first row in the table, and the numbers of each that is already known."""
        first, table, level = len(self._table), self._table, self._level
        found: list[Sequence[float] | None] = []
        row = NONE
        for gradient in gradients:
            numbers = None
            if gradient is not None:
                row = first
                if self._at_once:
                    numbers = (self._known(gradient) if self._taken else None) or numbers_at_once(gradient, level)
                if numbers is None:
                    table.add([measure(gradient, level)])
                else:
                    shape_and_dtype = gradient.shape, gradient.dtype
                    form = self._forms.get(shape_and_dtype)
                    if form is None:
                        form = self._forms[shape_and_dtype] = table.form_number(form_of(gradient))
                    table.add_numbers(form, numbers)
            found.append(numbers)
        return row, found

    def _known(self, gradient: Tensor) -> Sequence[float] | None:
        """Return the numbers of the task's input if this is the input or a view of it."""
        if type(gradient) is not Tensor or gradient.layout is not torch.strided:
            return None
        try:
            start = gradient.data_ptr()
            for taken in self._taken:
                if taken.start == start and taken.is_all_of(gradient):
                    return taken.numbers
        except RuntimeError:
            pass
        return None


MOST_UNWRITTEN = 4096  # labels

Look = Callable[[int, Sequence[Tensor | None]], None]


class Looks(NamedTuple):
    """The functions that examine gradients.

    Attributes:
        record_inputs, record_outputs: record the metadata of inputs and outputs, as the recorder does.
        number_outputs: returns the number of the outputs' metadata in the trace.
        unusual_tasks: waiting tasks whose gradients may differ from the graph's metadata.
        statistics: measures all gradients; None for no statistics.
    """

    record_inputs: Look
    record_outputs: Look
    number_outputs: Callable[[Sequence[Tensor | None]], int]
    unusual_tasks: set[int]
    statistics: FastStatistics | None


class Unwritten(NamedTuple):
    """The rows of the tasks that ran last in the fast loop, which are written to the columns many at a time.

    Another thread may write them while the loop adds more: each addition is one operation on a list.

    Attributes:
        starts: for each started task its id, the number of tasks that had become ready, and the time in nanoseconds.
        ends: the times at which they ended, in the same order.
        labels: by arrival, the labels that do not follow from the task and the arrival (`Recorder.knows_labels`).
    """

    starts: list[int]
    ends: list[int]
    labels: dict[int, str]


class LoopCalls(NamedTuple):
    """The functions of the recorder that a loop calls.

    Attributes:
        begin: called when a loop begins.
        knows_labels: see `Recorder.knows_labels`.
        write: writes the `Unwritten` rows to the columns.
        failed: called with a task that raises.
    """

    begin: Callable[[], None]
    knows_labels: Callable[[int], bool]
    write: Callable[[], None]
    failed: Callable[[int], None]


class FastRecorder:
    """Records the same columns as the recorder while one thread runs tasks without hooks.

    Args:
        edges: by task, the edges to the next ones.
        columns: the columns of the trace.
        looks: the functions that examine gradients.
        unwritten: the rows to which the loop adds.
        calls: the functions of the recorder.

    Attributes:
        starts, ends, labels: as in `Unwritten`.
        arrivals: the tasks in the order in which they became ready; the loop adds each with its label.
        unusual_tasks: as in `Looks`.
        looks_at_all: whether usual gradients are examined, too.
    """

    def __init__(
        self,
        edges: Sequence[Sequence[Edge]],
        columns: Columns,
        looks: Looks,
        unwritten: Unwritten,
        calls: LoopCalls,
    ) -> None:
        self._begin, self.knows_labels, self.write, self._failed = calls
        self._looks, self.unusual_tasks, self._statistics = looks, looks.unusual_tasks, looks.statistics
        self.looks_at_all = looks.statistics is not None
        self.starts, self.ends, self.labels = unwritten
        self.arrivals: MutableSequence[int] = columns.arrivals
        self._outputs = columns.outputs
        self._edges = edges

    def begin(self) -> None:
        """Begin again after other tasks or user code may have run."""
        self._begin()
        if self._statistics is not None:
            self._statistics.begin()

    def failed(self, task_id: int) -> None:
        """Record that a task raised, and release its inputs."""
        if self._statistics is not None:
            self._statistics.begin()
        self._failed(task_id)

    def record_inputs(self, task_id: int, gradients: Sequence[Tensor | None]) -> None:
        """Record the inputs of a task in `unusual_tasks`; with statistics, those of any task."""
        if task_id in self.unusual_tasks:
            self._looks.record_inputs(task_id, gradients)
        if self._statistics is not None:
            self._statistics.record_inputs(task_id, gradients)

    def record_outputs(self, task_id: int, outputs: Sequence[Tensor | None], unusual: Collection[Edge]) -> None:
        if unusual:
            self._outputs[task_id] = self._looks.number_outputs(outputs)
            self.unusual_tasks.update([edge.next_task for edge in unusual])
        elif len(outputs) != len(self._edges[task_id]):
            self._looks.record_outputs(task_id, outputs)
        if self._statistics is not None:
            self._statistics.record_outputs(task_id, outputs, unusual)
