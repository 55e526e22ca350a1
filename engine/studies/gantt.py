"""Schedules of a backward on several devices: the place and time of each task, and reasons for idle devices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...inspector.graph.graph import Graph
from ...inspector.graph.paths_and_repeats import longest_ways
from ...inspector.renderers import GraphTheme, drawn, saved, text_of
from ...inspector.text.durations import time_text
from ...inspector.text.report import ShownAsFindings, findings_rich, findings_text, row_called
from ...inspector.text.sizes_and_counts import counted, share_text
from ..schedule.device_queues import devices_in_order

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.console import RenderableType

_HARDLY = 0.01  # share of the makespan that counts as negligible
_ALIKE = 1.005  # a smaller ratio is printed as 1.00

ESTIMATED = (
    "The times of the tasks are estimated from the bytes of their gradients. For measured times, pass durations=run "
    'with the run of ts.backward(..., trace="off").'
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A task on its device, in nanoseconds since the start of the backward.

    Attributes:
        task: the task's id.
        ready_ns: the time at which its last gradient arrived and it entered its device's queue.
        start_ns, end_ns: its start and end.
        after: the task that produced that gradient; None for a root.
    """

    task: int
    ready_ns: int
    start_ns: int
    end_ns: int
    after: int | None

    @property
    def elapsed_ns(self) -> int:
        """The task's duration in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Idle:
    """An interval in which a device was idle.

    Attributes:
        device: the device.
        start_ns, end_ns: the start and the end of the interval.
        before: the task that ended it; None after the device's last task.
        blocker: the task that delayed `before` most. Among the tasks that had to run one after the other before it, it
            waited longest while its device ran others. None if none waited, so that no other order would help.
        waited_ns: the time that the blocker waited in this interval.
    """

    device: str
    start_ns: int
    end_ns: int
    before: int | None
    blocker: int | None
    waited_ns: int

    @property
    def elapsed_ns(self) -> int:
        """The length of the interval in nanoseconds."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class Gantt:
    """One backward on several devices, each of which ran one task at a time.

    Attributes:
        graph: the graph.
        policy: the name of the policy that sorted each device's queue.
        order: the ids of the tasks in the order in which they started.
        rows: the bars of each device, in order.
        estimated: whether the times of the tasks are estimates.
    """

    graph: Graph
    policy: str
    order: tuple[int, ...]
    rows: Mapping[str, tuple[Bar, ...]]
    estimated: bool

    def __repr__(self) -> str:
        guessed = ", estimated" if self.estimated else ""
        devices = counted(len(self.rows), "device")
        return f"<Gantt of {counted(len(self.order), 'task')} on {devices} under {self.policy}: {self._span}{guessed}>"

    @staticmethod
    def of(graph: Graph, policy: str, order: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int]) -> Gantt:
        """Return the schedule for measured starts and ends of the tasks, by position in `order`."""
        rows: dict[str, list[Bar]] = {name: [] for name in devices_in_order([str(each) for each in graph.devices])}
        ended: dict[int, int] = {}
        for task, start, end in zip(order, start_ns, end_ns, strict=True):
            before = [edge.task for edge in graph.in_edges[task] if edge.task in ended]
            after = max(before, key=ended.__getitem__, default=None)
            ready = 0 if after is None else min(ended[after], start)
            rows[str(graph.tasks[task].device)].append(Bar(task, ready, start, end, after))
            ended[task] = end
        done = {name: tuple(sorted(row, key=attrgetter("start_ns"))) for name, row in rows.items()}
        return Gantt(graph, policy, tuple(order), done, False)

    @property
    def _span(self) -> str:
        return time_text(self.makespan_ns)

    @cached_property
    def bars(self) -> dict[int, Bar]:
        """The bars by task id."""
        return {bar.task: bar for row in self.rows.values() for bar in row}

    @cached_property
    def makespan_ns(self) -> int:
        """Nanoseconds from the start to the end of the last task."""
        return max((row[-1].end_ns for row in self.rows.values() if row), default=0)

    @cached_property
    def busy_ns(self) -> dict[str, int]:
        """The busy time of each device in nanoseconds."""
        return {device: sum(bar.elapsed_ns for bar in row) for device, row in self.rows.items()}

    @property
    def busy(self) -> dict[str, float]:
        """The busy share of the makespan of each device, 0 to 1."""
        return {device: busy / self.makespan_ns if self.makespan_ns else 1.0 for device, busy in self.busy_ns.items()}

    @property
    def idle_ns(self) -> dict[str, int]:
        """The idle time of each device before the end of the backward, in nanoseconds."""
        return {device: self.makespan_ns - busy for device, busy in self.busy_ns.items()}

    @cached_property
    def idle(self) -> dict[str, tuple[Idle, ...]]:
        """The idle intervals of each device, in order. Computing them takes O(tasks) per device."""
        found = {}
        for device, row in self.rows.items():
            intervals, at = [], 0
            for bar in row:
                if bar.start_ns > at:
                    intervals.append(Idle(device, at, bar.start_ns, bar.task, *self._waited(bar, at)))
                at = bar.end_ns
            if self.makespan_ns > at:
                intervals.append(Idle(device, at, self.makespan_ns, None, None, 0))
            found[device] = tuple(intervals)
        return found

    def _waited(self, bar: Bar, since_ns: int) -> tuple[int | None, int]:
        """Return the task before this one that waited longest since then, and its waiting time."""
        blocker: int | None = None
        longest = 0
        while bar.after is not None and bar.ready_ns > since_ns:
            bar = self.bars[bar.after]
            waited = bar.start_ns - max(bar.ready_ns, since_ns)
            if waited > longest:
                blocker, longest = bar.task, waited
        return blocker, longest

    @cached_property
    def device_of(self) -> dict[int, str]:
        """The device of each task, by id."""
        return {bar.task: device for device, row in self.rows.items() for bar in row}

    def passed_by(self, task: int) -> int:
        """Return the number of tasks that the device completed while this one was ready."""
        bar, row = self.bars[task], self.rows[self.device_of[task]]
        return row.index(bar) - bisect_right(row, bar.ready_ns, hi=row.index(bar), key=attrgetter("end_ns"))

    @cached_property
    def critical_path(self) -> tuple[int, ...]:
        """The ids of the tasks on the longest path through the graph; more devices cannot shorten it."""
        ends = [head + elapsed for head, elapsed in zip(self._heads, self._times, strict=True)]
        path: list[int] = []
        before = list(range(len(ends)))
        while before:
            path.append(max(before, key=ends.__getitem__))
            before = [edge.task for edge in self.graph.in_edges[path[-1]]]
        return tuple(reversed(path))

    @cached_property
    def lower_bound_ns(self) -> int:
        """A lower bound of the makespan on these devices for any order.

        It is the length of the critical path, or, for the busiest device, its work plus the shortest paths before its
        first task and after its last one.
        """
        heads, times = self._heads, self._times
        after = [[edge.next_task for edge in edges] for edges in self.graph.out_edges]
        tails = longest_ways(reversed(self.order), after, times)
        path = max((head + elapsed for head, elapsed in zip(heads, times, strict=True)), default=0)
        works = [
            min(heads[bar.task] for bar in row) + self.busy_ns[device] + min(tails[bar.task] for bar in row)
            for device, row in self.rows.items()
        ]
        return max([path, *works])

    @cached_property
    def _times(self) -> list[int]:
        """The duration of each task, by id."""
        return [self.bars[task].elapsed_ns for task in range(len(self.graph))]

    @cached_property
    def _heads(self) -> list[int]:
        """The length of the longest path to each task in nanoseconds, by id."""
        before = [[edge.task for edge in edges] for edges in self.graph.in_edges]
        return longest_ways(self.order, before, self._times)

    @property
    def starved(self) -> Idle | None:
        """The longest idle time of a device that a queue's order caused; None below 1 % of the makespan."""
        idle = max((idle for row in self.idle.values() for idle in row), key=attrgetter("waited_ns"), default=None)
        return None if idle is None or idle.waited_ns <= _HARDLY * self.makespan_ns else idle

    @property
    def starved_text(self) -> str:
        """Text such as `idle for 6.42 ms: ToCopy waits 6.22 ms behind 96 tasks of cpu`; "" if `starved` is None."""
        idle = self.starved
        if idle is None or idle.blocker is None:
            return ""
        blocker = self.graph.tasks[idle.blocker].short_name
        passed, queue = counted(self.passed_by(idle.blocker), "task"), self.device_of[idle.blocker]
        waits = f"{blocker} waits {time_text(idle.waited_ns)} behind {passed} of {queue}"
        return f"idle for {time_text(idle.elapsed_ns)}: {waits}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The reason for the longest idle time, in sentences."""
        return (*self._why(), *((ESTIMATED,) if self.estimated else ()))

    def _why(self) -> Iterator[str]:
        idle = self.starved
        if idle is None or idle.before is None or idle.blocker is None:
            return
        describe, queue = self.graph.in_order(self.order).describe, self.device_of[idle.blocker]
        waits = "which" if idle.before == idle.blocker else f"to which {describe(idle.blocker)} leads. That one"
        passed = counted(self.passed_by(idle.blocker), "other task")
        yield (
            f"Under {self.policy}, {idle.device} is idle for {time_text(idle.elapsed_ns)} of {self._span} before "
            f"{describe(idle.before)}, {waits} waits {time_text(idle.waited_ns)} in the queue of {queue}, which "
            f"runs {passed} first."
        )

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        rows = [
            [device, f"{len(row):,}", time_text(self.busy_ns[device]), self._idle_text(device)]
            for device, row in self.rows.items()
        ]
        return [["device", "tasks", "busy", "idle"], *rows]

    def _idle_text(self, device: str) -> str:
        idle = self.idle_ns[device]
        return f"{time_text(idle)} ({share_text(idle, self.makespan_ns)})" if idle else "–"

    def __str__(self) -> str:
        return findings_text([f"{self.policy}: {self._span}", *self.sentences], self.cells, _RIGHT)

    def __rich__(self) -> RenderableType:
        return findings_rich([f"{self.policy}: {self._span}", *self.sentences], self.cells, _RIGHT)

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells, [f"{self.policy}: {self._span}", *self.sentences], _RIGHT)

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw the tasks as bars over time, with a row for each device. Needs plotly."""
        return drawn("devices over time as a figure", [self], theme)

    def deck(self) -> Any:
        """Return a widget that plays the schedule in a notebook, task by task, with a ready queue per device.

        Raises:
            ModuleNotFoundError: `anywidget` is not installed.
        """
        return drawn("devices over time as a deck", [self])

    def save_html(self, path: str | Path) -> Path:
        """Save the same as one page that plays without a kernel or a network."""
        return saved("devices over time as a page", [self], path)


_RIGHT = ("tasks", "busy", "idle")


@dataclass(frozen=True, eq=False)
class MakespanReport(ShownAsFindings):
    """The schedules of one backward on several devices under several policies, displayed as a table in a notebook.

    Attributes:
        rows: the schedules, in the order in which the policies were passed.
    """

    rows: tuple[Gantt, ...]

    def __getitem__(self, policy: str) -> Gantt:
        """Return the schedule of a policy.

        Raises:
            ValueError: if the policy is not in the report.
        """
        return row_called(policy, ((row.policy, row) for row in self.rows), "policy")

    def __repr__(self) -> str:
        spans = ", ".join(f"{row.policy} {time_text(row.makespan_ns)}" for row in self.rows)
        return f"<MakespanReport of {len(self.best.graph):,} tasks: {spans}>"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices on which tasks run: "cpu", "cuda:0"."""
        return tuple(self.rows[0].rows)

    @property
    def best(self) -> Gantt:
        """The policy that ends first, the first of several."""
        return min(self.rows, key=attrgetter("makespan_ns"))

    @property
    def worst(self) -> Gantt:
        """The policy that ends last, the first of several."""
        return max(self.rows, key=attrgetter("makespan_ns"))

    @cached_property
    def lower_bound_ns(self) -> int:
        """A lower bound of the makespan on these devices for any order, see `Gantt.lower_bound_ns`."""
        return self.best.lower_bound_ns

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences, with the reason for the longest idle time."""
        return (*self._of_makespans(), *((ESTIMATED,) if self.best.estimated else ()))

    def _of_makespans(self) -> Iterator[str]:
        best, worst = self.best, self.worst
        ratio = _ratio(worst.makespan_ns, best.makespan_ns)
        bound = _ratio(best.makespan_ns, self.lower_bound_ns)
        reached = "which no order can beat" if bound < _ALIKE else f"{bound:.2f} times the lower bound"
        best_text = f"{time_text(best.makespan_ns)}, {reached}"
        if ratio < _ALIKE:
            yield f"The order makes no difference to the makespan: {best_text}."
            return
        behind = [row.policy for row in self.rows if _ratio(row.makespan_ns, worst.makespan_ns) > 2 - _ALIKE]
        yield (
            f"The makespan is {time_text(worst.makespan_ns)} under {' and '.join(behind)}, {ratio:.2f} times that of "
            f"{best.policy}, {best_text}."
        )
        yield from worst._why()

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per policy, for `pandas.DataFrame(report.records())`."""
        return [
            {
                "policy": row.policy,
                "makespan_ns": row.makespan_ns,
                "lower_bound_ns": self.lower_bound_ns,
                **{f"idle_ns {device}": idle for device, idle in row.idle_ns.items()},
                "estimated": row.estimated,
            }
            for row in self.rows
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        headings = ["policy", "makespan", "× best", "× lower bound", *(f"idle on {device}" for device in self.devices)]
        best, bound = self.best.makespan_ns, self.lower_bound_ns
        rows = [
            [
                row.policy,
                time_text(row.makespan_ns),
                f"{_ratio(row.makespan_ns, best):.2f}",
                f"{_ratio(row.makespan_ns, bound):.2f}",
                *map(row._idle_text, self.devices),
            ]
            for row in self.rows
        ]
        return [headings, *rows]

    @property
    def right(self) -> Sequence[str]:
        """The headings of columns of numbers."""
        return self.cells[0][1:]

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw the schedules below each other, over one time axis. Needs plotly."""
        return drawn("devices over time as a figure", self.rows, theme, self.lower_bound_ns)

    def deck(self) -> Any:
        """Return a widget that plays the schedules in a notebook, a tab for each policy; see `Gantt.deck`."""
        return drawn("devices over time as a deck", self.rows)

    def save_html(self, path: str | Path) -> Path:
        """Save the same as one page that plays without a kernel or a network."""
        return saved("devices over time as a page", self.rows, path)


def _ratio(one: float, other: float) -> float:
    return one / other if other else 1.0
