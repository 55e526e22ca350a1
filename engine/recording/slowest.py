"""The slowest operations, modules and tasks of one backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.phrases import module_title, task_name
from ...inspector.text.durations import time_text
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import counted, share_text
from ...inspector.validation import expect_number


@dataclass(frozen=True, slots=True)
class Slow:
    """The time of an operation, a module or a task.

    Attributes:
        name: the node's name, the module's path, or the description of the task.
        elapsed_ns: the time of its tasks.
        tasks: their number.
    """

    name: str
    elapsed_ns: int
    tasks: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class Slowest(ShownAsTable):
    """The slowest operations, modules and tasks of one backward. It prints as a table with sentences.

    Attributes:
        graph: the graph that was run.
        times: the tasks that have ended, with their nanoseconds, in the order in which they ran.
        count: the number of rows of each kind that are shown.

    A module's time is that of the tasks of its own operations, without the modules that it calls.
    """

    graph: Graph
    times: Sequence[tuple[Task, int]]
    count: int

    @cached_property
    def elapsed_ns(self) -> int:
        """The time of all tasks."""
        return sum(elapsed_ns for _, elapsed_ns in self.times)

    @cached_property
    def operations(self) -> tuple[Slow, ...]:
        """The node types, slowest first."""
        return _summed((task_name(task), elapsed_ns) for task, elapsed_ns in self.times)

    @cached_property
    def modules(self) -> tuple[Slow, ...]:
        """The modules, slowest first; empty if no capture saw the forward."""
        found = ((self.graph.module(task), elapsed_ns) for task, elapsed_ns in self.times)
        return _summed((module_title(self.graph, path), elapsed_ns) for path, elapsed_ns in found if path is not None)

    @cached_property
    def tasks(self) -> tuple[Slow, ...]:
        """The tasks, slowest first."""
        slowest = sorted(self.times, key=lambda each: -each[1])
        return tuple(Slow(self.graph.describe(task), elapsed_ns) for task, elapsed_ns in slowest[: self.count])

    words = ("", "slowest")
    html = "table as HTML"

    def __repr__(self) -> str:
        return f"<Slowest: {' '.join(self.sentences)}>"

    @property
    def cells(self) -> list[list[str]]:
        rows = [["", "slowest", "time", "share", "tasks"]]
        for kind, found in (("operation", self.operations), ("module", self.modules), ("task", self.tasks)):
            for each in found[: self.count]:
                share = share_text(each.elapsed_ns, self.elapsed_ns)
                rows.append([kind, each.name, time_text(each.elapsed_ns), share, f"{each.tasks:,}"])
        return rows

    @property
    def sentences(self) -> list[str]:
        return list(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if not self.times:
            yield "No task has run."
            return
        yield f"{counted(len(self.times), 'task')} took {time_text(self.elapsed_ns)}."
        for kind, found in (("operation", self.operations), ("module", self.modules), ("task", self.tasks)):
            if found:
                slow = found[0]
                of = f" in {counted(slow.tasks, 'task')}" if slow.tasks > 1 else ""
                share = share_text(slow.elapsed_ns, self.elapsed_ns)
                yield f"The slowest {kind} is {slow.name}: {time_text(slow.elapsed_ns)} ({share}){of}."
        if any(device.type != "cpu" for device in self.graph.devices):
            yield "On accelerators these are the times to launch the kernels, which may run longer."


def _summed(times: Iterable[tuple[str, int]]) -> tuple[Slow, ...]:
    found: dict[str, tuple[int, int]] = {}
    for name, elapsed_ns in times:
        nanoseconds, tasks = found.get(name, (0, 0))
        found[name] = nanoseconds + elapsed_ns, tasks + 1
    slowest = sorted(found.items(), key=lambda each: -each[1][0])
    return tuple(Slow(name, nanoseconds, tasks) for name, (nanoseconds, tasks) in slowest)


def slowest_of(graph: Graph, times: Iterable[tuple[int, int | None]], count: int) -> Slowest:
    """Return the slowest operations, modules and tasks.

    Args:
        graph: the graph that was run.
        times: the ids of tasks, with the nanoseconds of those that have ended.
        count: the number of rows of each kind to show.
    """
    expect_number(count, int, "count", "a number of rows, 1 or more")
    if count < 1:
        raise ValueError(f"count must be at least 1 (rows of each kind), got {count}")
    ended = [(graph.tasks[task_id], elapsed_ns) for task_id, elapsed_ns in times if elapsed_ns is not None]
    return Slowest(graph, ended, count)
