"""The columns of a trace, compact enough for a million tasks."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from ..schedule.policy import Key
from .statistics import Form, Level

NONE = -1  # no end was seen, or no row of statistics
AS_IN_GRAPH = 0  # the form number for gradients that match the graph's metadata

Forms = tuple[Form | None, ...]
"""The forms of a task's gradients, None for undefined ones."""


@dataclass(slots=True)
class Columns:
    """The numbers of a trace.

    Attributes:
        order: the ids of the tasks in the order in which they started.
        started_ns, ended_ns: by task id, since the first start; -1 for a task that did not start or end.
        thread: by task id; 0 is the thread in which the first task started.
        by_hand: by task id; 1 if the user chose the task.
        arrived: by task id: the number of tasks that had become ready by its start.
        inputs, outputs: by task id: the form of the gradients: 0 for the graph's metadata, else an index into
            `Trace.forms`.
        input_row, output_row: by task id: the first row of the statistics, one row per defined gradient, or -1. Empty
            at level "off".
        arrivals: task ids in the order in which they became ready.
        label: an index into `Trace.labels` for each arrival.
        hook_task, hook: for each hook that ran, the id of its task and an index into `Trace.hooks`.
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

    def take_back(self, tasks: Sequence[int], arrived: int) -> None:
        """Undo the start of these last tasks, and all but the first `arrived` arrivals."""
        empty = empty_columns(1, "cheap")
        by_task = ["started_ns", "ended_ns", "thread", "by_hand", "arrived", "inputs", "outputs"]
        if self.input_row:
            by_task += ["input_row", "output_row"]
        for name in by_task:
            column, nothing = getattr(self, name), getattr(empty, name)[0]
            for task_id in tasks:
                column[task_id] = nothing
        del self.order[len(self.order) - len(tasks) :], self.arrivals[arrived:], self.label[arrived:]
        undone = set(tasks)
        while self.hook_task and self.hook_task[-1] in undone:
            del self.hook_task[-1], self.hook[-1]


def empty_columns(tasks: int, level: Level) -> Columns:
    """Return the columns of a graph with this many tasks, none of which has started."""
    measured = 0 if level == "off" else tasks
    return Columns(
        order=array("i"),
        started_ns=array("q", [NONE]) * tasks,
        ended_ns=array("q", [NONE]) * tasks,
        thread=array("i", [0]) * tasks,
        by_hand=array("b", [0]) * tasks,
        arrived=array("i", [0]) * tasks,
        inputs=array("i", [AS_IN_GRAPH]) * tasks,
        outputs=array("i", [AS_IN_GRAPH]) * tasks,
        input_row=array("q", [NONE]) * measured,
        output_row=array("q", [NONE]) * measured,
        arrivals=array("i"),
        label=array("i"),
        hook_task=array("i"),
        hook=array("i"),
    )


class Label(NamedTuple):
    """The common part of queue labels: the text before the task's id ("#12"), or before its arrival number ("@3")."""

    text: str
    number: str | None  # "task", "arrival" or None

    def of(self, task_id: int, arrival: int) -> str:
        """Return the label of a task with this arrival number."""
        if self.number is None:
            return self.text
        return f"{self.text}{arrival if self.number == 'arrival' else task_id}"


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """The period in which one policy chose.

    Attributes:
        begins: the place in the order of the first task that it could choose; the next term ends it.
        policy: its name.
        rule: its rule in words; None for a user's own choice.
        key: a function from the number of an arrival to its sort key; None for a user's own choice.
    """

    begins: int
    policy: str
    rule: str | None
    key: Callable[[int], Key] | None


def term_at(terms: Sequence[PolicyTerm], place: int) -> PolicyTerm:
    """Return the term in which the task at this place was chosen."""
    return terms[bisect_right(terms, place, key=lambda term: term.begins) - 1]


class EditRow(NamedTuple):
    """A stored edit: forms, and rows of statistics or -1."""

    task: int
    input: int
    before: Form | None
    before_row: int
    after: Form | None
    after_row: int
