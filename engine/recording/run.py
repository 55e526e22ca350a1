"""The record of one backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from ...errors import ending_where_called, verbs_end_where_called
from ...inspector.entry_points import load_entry_point
from ...inspector.graph.graph import Graph
from ...inspector.renderers import drawn, saved, text_of
from ...inspector.text.sizes_and_counts import size_text
from ...inspector.validation import expect, raise_no_attribute
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..memory.device_choice import chosen_device
from ..memory.task_memory import Footprints
from ..memory.timeline import Timeline
from ..schedule.dependencies import queue_lengths
from .batch_report import Batches
from .slowest import Slowest, slowest_of
from .task_records import Trace

if TYPE_CHECKING:
    import torch

    from .peak_report import PeakReport, Phase

Engine = Literal["native", "direct"]


_REPORTS = "tapescope.reports"  # the entry points of reports from other packages
_reading = RLock()  # so that two threads read the graph of a late run only once

_ELSEWHERE = dict.fromkeys(
    ("step", "run", "run_to", "step_over", "step_out", "stop", "back", "goto", "watch", "break_at", "ready", "current"),
    "this backward has run; ts.debug(loss) steps through a backward, run.deck() replays this one",
)


@verbs_end_where_called
@dataclass(frozen=True, eq=False)
class Run:
    """The record of one backward. It keeps no saved tensors alive: `graph` has its nodes as long as the loss exists.

    If nothing was recorded, the graph and the order are read on first access. Until then the run keeps the root nodes,
    and so the leaves. If the loss is freed while the nodes still keep other tensors (saved tensors of a retained graph,
    attributes of a custom Function's `ctx`), the run reads the graph at that moment.

    Attributes:
        graph: the graph that was run.
        policy: the policy's name, and the policy whose order was run if it is another: "auto: lpmf", "bfs: heap".
        engine: "native" or "direct".
        order: the ids of the tasks in the order in which they were executed.
        planned: the policy's order. Equal to `order` unless `inputs=` made some tasks unnecessary.
        elapsed_ns: nanoseconds of the backward itself, without reading the graph and planning.
        trace: the record of each task; None if it was not recorded.
        timeline: its memory, if measured: of the requested device; else of the accelerator, and of several the one with
            the highest peak. `timelines` has all.
        footprints: the tasks' footprints on the same device, from which `simulate` predicts other orders.
        accumulation: how gradients were summed, and when they were freed.
        batches: the tasks that ran as one, and those that did not, with the reasons; None without `batch=`.
        note: the reason for the order: why "auto" or the ranks of a process group kept PyTorch's own.
        elsewhere: the memory of the other devices on which the backward ran, each with its footprints.
        stopped: the breakpoint, watchpoint or request that stopped a session, as a sentence; "" if it ran to the end.
    """

    graph: Graph
    policy: str
    engine: Engine
    order: tuple[int, ...]
    planned: tuple[int, ...]
    elapsed_ns: int
    trace: Trace | None = None
    timeline: Timeline | None = None
    footprints: Footprints | None = None
    accumulation: Accumulation = PYTORCHS
    batches: Batches | None = None
    note: str = ""
    elsewhere: tuple[tuple[Timeline, Footprints | None], ...] = ()
    stopped: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.graph.for_result)

    @classmethod
    def late(
        cls,
        graph: Callable[[], Graph],
        order: Callable[[Graph], Sequence[int]],
        policy: str,
        elapsed_ns: int,
        note: str = "",
    ) -> Self:
        """Create a run of the native engine with only an order, whose graph is read on first access.

        Args:
            graph: a function that reads the graph.
            order: a function that returns the tasks of that graph in the order in which they ran.
            policy, elapsed_ns, note: as above.
        """
        run = cls.__new__(cls)
        vars(run).update(policy=policy, engine="native", elapsed_ns=elapsed_ns, note=note, _late=(graph, order))
        return run

    if not TYPE_CHECKING:

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            if name in ("graph", "order", "planned"):
                with _reading:
                    if (late := vars(self).get("_late")) is not None:  # otherwise another thread has read it meanwhile
                        read, order = late
                        graph = read()
                        tasks = tuple(order(graph))
                        vars(self).update(graph=graph.for_result, order=tasks, planned=tasks, _late=None)
                if name in vars(self):
                    return vars(self)[name]
            return raise_no_attribute(self, name, "a Run", _ELSEWHERE)

    def __dir__(self) -> list[str]:
        """Return the attribute names, including `graph` and `order` before they are read."""
        return sorted({*super().__dir__(), "graph", "order", "planned"} - {"elsewhere", "late", "with_memory"})

    def __repr__(self) -> str:
        several = len(self.timelines) > 1
        peaks = [
            f"{size_text(each.peak_bytes)}{f' on {device}' if several else ''}"
            for device, each in self.timelines.items()
        ]
        # No peak counts an existing .grad, which a step after zero_grad() allocates.
        older = sum(each.baseline.grad_bytes for each in self.timelines.values())
        without = f" (without {size_text(older)} of existing .grad)" if older else ""
        peak = f", peak {', '.join(peaks)}{without}" if peaks else ""
        saved = f", {self.batches.launches_saved:,} launches saved" if self.batches else ""
        note = f" ({self.note})" if self.note else ""
        stopped = f"; stopped: {self.stopped.removeprefix('stopped ')}" if self.stopped else ""
        return (
            f"<Run of {len(self.order)} tasks under {self.accumulation.of(self.policy)}{note}, {self.engine} engine: "
            f"{self.elapsed_ns / 1e6:.1f} ms, longest queue {self.longest_queue}{peak}{saved}{stopped}>"
        )

    def _repr_html_(self) -> str:
        return text_of("run as HTML", self)

    @cached_property
    def queue_lengths(self) -> tuple[int, ...]:
        """The number of ready tasks when each task of `order` was chosen, including itself."""
        return tuple(queue_lengths(self.graph, self.order))

    @property
    def longest_queue(self) -> int:
        """The largest number of tasks ready at one moment, including the one that was chosen then."""
        return max(self.queue_lengths, default=0)

    @property
    def peak_bytes(self) -> int:
        """The highest level of memory in the backward, see `Timeline`. Raises ValueError if it was not measured."""
        return self._measured().peak_bytes

    @cached_property
    def timelines(self) -> dict[str, Timeline]:
        """The memory of each device, `timeline` first: {"cuda:0": ..., "cpu": ...}. Empty if not measured."""
        found = () if self.timeline is None else (self.timeline, *(timeline for timeline, _ in self.elsewhere))
        return {each.device: each for each in found}

    @cached_property
    def footprints_by_device(self) -> dict[str, Footprints]:
        """The footprints of each device, from which `simulate` predicts other orders; as `timelines`."""
        found = (self.footprints, *(footprints for _, footprints in self.elsewhere))
        return {each.device: each for each in found if each is not None}

    def peak(self, device: torch.device | str | None = None, *, phase: Phase = "backward") -> PeakReport:
        """Report on the storages alive at the peak: their makers, their holders, and when they are freed.

        Args:
            device: the device; None for that of `timeline`. A phase may stand in its place: `run.peak("forward")`.
            phase: "backward" or "forward". The report on the backward has the forward's in `PeakReport.forward` if its
                peak is higher.

        Raises:
            ValueError: If memory was not measured, or not on this device, or not in the forward.
        """
        from .peak_report import peak_report

        timeline = self._measured()
        if device == "forward" or device == "backward":
            device, phase = None, "forward" if device == "forward" else "backward"
        if device is not None:
            timeline = self.timelines[chosen_device(device, self.timelines)]
        elsewhere = tuple(each for each in self.timelines.values() if each is not timeline)
        return peak_report(timeline, trace=self.trace, elsewhere=elsewhere, phase=phase)

    def with_memory(self, found: Sequence[tuple[Timeline, Footprints | None]], predicts: bool = True) -> Self:
        """Return a copy of the run with this memory. `predicts`: whether other orders can be predicted from it."""
        from .peak_hints import keep_holders

        for each, _ in found:
            keep_holders(each)
        (timeline, footprints), *others = [(timeline, each if predicts else None) for timeline, each in found]
        order = timeline.order if any(each.event_places for each, _ in found) else self.order
        return replace(self, order=order, timeline=timeline, footprints=footprints, elsewhere=tuple(others))

    def _measured(self) -> Timeline:
        if self.timeline is None:
            raise ValueError(
                "the memory of this run was not measured; use ts.backward(..., memory=True) or ts.profile(make_loss)"
            )
        return self.timeline

    def save(self, path: str | Path) -> Path:
        """Save the run as versioned JSON, compressed if large, for `ts.load`. The page of file formats lists the
        fields.

        The graph is saved without its nodes, and so without their saved tensors.
        """
        return saved("run as a file", self, path)

    def to_pandas(self, device: torch.device | str | None = None) -> Any:
        """Return a pandas.DataFrame with one row per task, in the order in which they ran.

        The columns are those of `Trace.to_pandas` that were recorded; times need a trace or memory. With measured
        memory there are also `bytes_before` and `bytes_after`, the levels at the start of the task and of the next one,
        `peak_bytes`, the highest level between, and `allocated_bytes` and `freed_bytes`, whose difference is the
        change. If tasks of several devices overlap, these two are the task's own, while the level also changes by
        others.

        Args:
            device: the device; None for that of `timeline`.

        Raises:
            ModuleNotFoundError: If pandas is not installed.
            TypeError, ValueError: If `device` is not a device, or its memory was not measured.
        """
        return drawn("run as a table", self, device)

    def slowest(self, count: int = 5) -> Slowest:
        """Return the slowest operations, modules and tasks, as a table with sentences.

        Args:
            count: the number of rows of each kind.

        Raises:
            TypeError, ValueError: If `count` is not a number of at least 1, or times were not recorded.
        """
        timeline = self.timeline
        if timeline is not None and timeline.task_ns and timeline.order == self.order:
            spans = zip(self.order, timeline.task_ns[::2], timeline.task_ns[1::2], strict=True)
            return slowest_of(
                self.graph, ((task, ended_ns - started_ns) for task, started_ns, ended_ns in spans), count
            )
        if self.trace is None:
            raise ValueError(
                'the times of this run were not recorded; use ts.backward(..., trace="cheap") or ts.profile(make_loss)'
            )
        return self.trace.slowest(count)

    def report(self, name: str) -> Any:
        """Return a report of another package: `run.report("costs").render(Path("costs.txt"))`.

        Args:
            name: the name of an entry point in the group `tapescope.reports`, see `ts.types.Report`.

        Raises:
            ValueError: no package has this report, or it cannot be imported.
            TypeError: the object of the entry point is not a report. Also raises errors of the report.
        """
        expect(name, str, "name", f"the name of an entry point in {_REPORTS}")
        found = load_entry_point(_REPORTS, name, "report")
        missing = [each for each in ("from_run", "render") if not callable(getattr(found, each, None))]
        if missing:
            raise TypeError(f"report {name!r} has no method {missing[0]}(); expected from_run(run) and render(out)")
        return found.from_run(self)

    def save_perfetto(self, path: str | PathLike[str]) -> Path:
        """Save the run as a trace for ui.perfetto.dev and chrome://tracing.

        The file is JSON in the Trace Event Format, as gzip if the name ends in .gz. An existing file at `path` is
        replaced. Tasks are slices on one track per device, with their module, line and the reason for the choice; ready
        tasks and memory are counters. If a capture in this process saw the forward, its operations are also slices,
        with arrows to their tasks. Times are those of the trace or of the measured memory. In a run with neither, each
        task has one microsecond, and its track says so.

        Raises:
            TypeError: If path is not a path.
            OSError: If the file cannot be written.
        """
        return saved("run for Perfetto", self, path)

    def deck(self, *, recompute: Any = None) -> Any:
        """Return the run as a widget (`widgets.deck.run_player.Recording`) that replays it in a notebook.

        Args:
            recompute: the plan (`ts.types.RecomputePlan`) used in the forward: the deck shows which saved tensors it
                dropped, and draws the predicted memory, with and without the plan, beside the measured one.

        Raises:
            TypeError, ValueError: If `recompute` is not a plan, or belongs to another graph.
            ModuleNotFoundError: If `anywidget` is missing.
        """
        try:
            return drawn("run as a deck", self, recompute=recompute)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "run.deck() needs a notebook with anywidget: pip install 'tapescope[notebook]'. "
                "run.save_html(path) writes a page that plays without it"
            ) from error

    def save_html(self, path: str | Path, *, recompute: Any = None) -> Path:
        """Save the run as one page that replays it without a kernel or a network. For `recompute` see `deck`."""
        return saved("run as a page", self, path, recompute=recompute)


class Report(Protocol):
    """A report on a run, from a package with an entry point in the group `tapescope.reports`."""

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Return the report of a run. The run may come from a file, so that it has no tensors."""

    def render(self, out: Path) -> object:
        """Write the report to a file."""
