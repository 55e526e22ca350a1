"""The record of one backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, Self

from ...errors import ending_where_called, verbs_end_where_called
from ...inspector.graph.graph import Graph
from ...inspector.renderers import drawn, saved
from ...inspector.text.sizes_and_counts import size_text
from ...inspector.validation import asked_in_vain
from ..execution.accumulation_rule import PYTORCHS, Accumulation
from ..memory.device_choice import chosen_device
from ..memory.task_memory import Footprints
from ..memory.timeline import Timeline
from ..schedule.dependencies import queue_lengths
from .batch_report import Batches
from .task_records import Trace

if TYPE_CHECKING:
    import torch

    from .peak_report import PeakReport, Phase

Engine = Literal["native", "direct"]


_reading = RLock()  # of late runs: what two threads ask for at once is read once

_ELSEWHERE = dict.fromkeys(
    ("step", "run", "run_to", "step_over", "step_out", "stop", "back", "goto", "watch", "break_at", "ready", "current"),
    "it has run; ts.debug(loss) steps through a backward, run.deck() plays this one",
)


@verbs_end_where_called
@dataclass(frozen=True, eq=False)
class Run:
    """The record of one backward. It keeps no saved tensor alive: `graph` has its nodes as long as the loss exists.

    Where nothing was recorded, the graph and the order are read when they are asked for. Until then the run keeps the
    root nodes, and so the leaves. It reads the graph when the loss dies if the nodes still keep other tensors then:
    saved ones of a retained graph, attributes of a custom Function's `ctx`.

    Attributes:
        graph: the graph that was run.
        policy: the policy's name; with whose order was run, where that is another's: "auto: lpmf", "bfs: heap".
        engine: "native" or "direct".
        order: the ids of the tasks in the order in which they were executed.
        planned: the policy's order. Equal to `order` unless a task that `inputs=` makes needless was left out.
        elapsed_ns: nanoseconds of the backward itself, without reading the graph and planning.
        trace: what happened to each task; None where it was not recorded.
        timeline: its memory, where that was measured: of the device that was asked for; else of the accelerator, and of
            several of the one with the highest peak. `timelines` has all.
        footprints: what the measurement teaches about other orders, for `simulate`; of the same device.
        accumulation: how gradients were summed, and when they were let go.
        batches: what ran as one, and what did not and why; None without `batch=`.
        note: why it is that order: why "auto" kept PyTorch's own, or the ranks of a process group did.
        elsewhere: the memory of the other devices on which the backward ran, each with its footprints.
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
        """A run of the native engine, without more than an order, whose graph is read when somebody asks for it.

        Args:
            graph: reads it.
            order: the tasks of that graph, in the order in which they ran.
            policy, elapsed_ns, note: as above.
        """
        run = cls.__new__(cls)
        vars(run).update({each.name: each.default for each in fields(cls) if each.default is not MISSING})
        vars(run).update(policy=policy, engine="native", elapsed_ns=elapsed_ns, note=note, _late=(graph, order))
        return run

    if not TYPE_CHECKING:

        @ending_where_called
        def __getattr__(self, name: str) -> Any:
            if name in ("graph", "order", "planned"):
                with _reading:
                    if (late := vars(self).get("_late")) is not None:  # else another thread has read it meanwhile
                        read, order = late
                        graph = read()
                        tasks = tuple(order(graph))
                        vars(self).update(graph=graph.for_result, order=tasks, planned=tasks, _late=None)
                if name in vars(self):
                    return vars(self)[name]
            return asked_in_vain(self, name, "a Run", _ELSEWHERE)

    def __dir__(self) -> list[str]:
        """Return the names for users; `graph` and `order` are among them before they have been read."""
        return sorted({*super().__dir__(), "graph", "order", "planned"} - {"elsewhere", "late", "with_memory"})

    def __repr__(self) -> str:
        several = len(self.timelines) > 1
        peaks = [
            f"{size_text(each.peak_bytes)}{f' on {device}' if several else ''}"
            for device, each in self.timelines.items()
        ]
        peak = f", peak {', '.join(peaks)}{self._older_gradients()}" if peaks else ""
        saved = f", {self.batches.launches_saved:,} launches saved" if self.batches else ""
        note = f" ({self.note})" if self.note else ""
        return (
            f"<Run of {len(self.order)} tasks under {self.accumulation.of(self.policy)}{note}, {self.engine} engine: "
            f"{self.elapsed_ns / 1e6:.1f} ms, longest queue {self.longest_queue}{peak}{saved}>"
        )

    def _older_gradients(self) -> str:
        """Return a note on .grad that was there before: no peak counts it, a step after zero_grad() allocates it."""
        found = sum(each.baseline.grad_bytes for each in self.timelines.values())
        return f" (without {size_text(found)} of .grad that was there before)" if found else ""

    @cached_property
    def queue_lengths(self) -> tuple[int, ...]:
        """How many tasks were ready when each one of `order` was picked, that one included."""
        return tuple(queue_lengths(self.graph, self.order))

    @property
    def longest_queue(self) -> int:
        """The most tasks that were ready at one moment."""
        return max(self.queue_lengths, default=0)

    @property
    def peak_bytes(self) -> int:
        """The highest level of memory in the backward, see `Timeline`. Raises ValueError if it was not measured."""
        return self._measured().peak_bytes

    @cached_property
    def timelines(self) -> dict[str, Timeline]:
        """By device its memory, `timeline` first: {"cuda:0": ..., "cpu": ...}. Empty: not measured."""
        found = () if self.timeline is None else (self.timeline, *(timeline for timeline, _ in self.elsewhere))
        return {each.device: each for each in found}

    @cached_property
    def footprints_by_device(self) -> dict[str, Footprints]:
        """By device what the measurement teaches about other orders, for `simulate`; as `timelines`."""
        found = (self.footprints, *(footprints for _, footprints in self.elsewhere))
        return {each.device: each for each in found if each is not None}

    def peak(self, device: torch.device | str | None = None, *, phase: Phase = "backward") -> PeakReport:
        """What is alive at the peak: who made it, who keeps it, what frees it.

        Args:
            device: whose peak. None: that of `timeline`.
            phase: "backward"; where the forward's peak is higher, `PeakReport.forward` has that, too. Or "forward".

        Raises:
            ValueError: memory was not measured, or not on this device, or not that of the forward.
        """
        from .peak_report import peak_report

        timeline = self._measured()
        if device is not None:
            timeline = self.timelines[chosen_device(device, self.timelines)]
        elsewhere = tuple(each for each in self.timelines.values() if each is not timeline)
        return peak_report(timeline, trace=self.trace, elsewhere=elsewhere, phase=phase)

    def with_memory(self, found: Sequence[tuple[Timeline, Footprints | None]], predicts: bool = True) -> Self:
        """The same run, of which this was measured. `predicts`: whether that says what other orders take."""
        from .peak_hints import keep_holders

        for each, _ in found:
            keep_holders(each)
        (timeline, footprints), *others = [(timeline, each if predicts else None) for timeline, each in found]
        order = timeline.order if any(each.event_places for each, _ in found) else self.order
        return replace(self, order=order, timeline=timeline, footprints=footprints, elsewhere=tuple(others))

    def _measured(self) -> Timeline:
        if self.timeline is None:
            raise ValueError(
                "the memory of this run was not measured: ts.backward(..., memory=True) or ts.profile(make_loss) do"
            )
        return self.timeline

    def save(self, path: str | Path) -> Path:
        """Writes the run as versioned JSON, compressed when large, for `ts.load`; the page of file formats has its
        fields.

        Of the graph all is kept but the nodes, so what they save from the forward is not.
        """
        return saved("run as a file", self, path)

    def to_pandas(self, device: torch.device | str | None = None) -> Any:
        """A pandas.DataFrame with a row for each task, in the order in which they ran.

        The columns are those of `Trace.to_pandas`, of which those that were not recorded are left out: without a trace
        and without memory there is no clock. Where memory was measured there are also `bytes_before`, `bytes_after`
        and `peak_bytes`, the level as the task starts, as the next one does, and at its highest between, and
        `allocated_bytes` and `freed_bytes`, of which the difference is made; where devices' tasks overlap these two are
        the task's own, and the level changes by others', too.

        Args:
            device: whose memory. None: that of `timeline`.

        Raises:
            ModuleNotFoundError: pandas is not installed.
            TypeError, ValueError: that is no device, or its memory was not measured.
        """
        return drawn("run as a table", self, device)

    def save_perfetto(self, path: str | PathLike[str]) -> Path:
        """Writes the run as a trace that ui.perfetto.dev and chrome://tracing open.

        It is JSON in the Trace Event Format, as gzip where the name ends in .gz. What is at `path` is replaced. Tasks
        are slices, a track for each device, with their module, line and the reason why they were picked; ready
        tasks and memory are counters; where a capture of this process saw the forward its operations are slices, too,
        and an arrow leads from each to its tasks. Times are real, those of the trace or of the measured memory; of a
        run that has neither each task takes a microsecond, and its track says so.

        Raises:
            TypeError: path is no path.
            OSError: it can't be written.
        """
        return saved("run for Perfetto", self, path)

    def deck(self, *, recompute: Any = None) -> Any:
        """The run as a widget (`widgets.deck.run_player.Recording`) that plays it again, in a notebook.

        Args:
            recompute: the plan (`ts.types.RecomputePlan`) that the forward ran under: the deck says what it let
                go of, and draws the memory that the plan predicts, with it and without, beside what was measured.

        Raises:
            TypeError, ValueError: that is no plan, or the graph is another's.
            ModuleNotFoundError: `anywidget` is missing.
        """
        try:
            return drawn("run as a deck", self, recompute=recompute)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "run.deck() needs a notebook with anywidget: pip install 'tapescope[notebook]'. "
                "run.save_html(path) writes a page that plays without"
            ) from error

    def save_html(self, path: str | Path, *, recompute: Any = None) -> Path:
        """Writes the run as one page that plays it, without a kernel or a network. For `recompute` see `deck`."""
        return saved("run as a page", self, path, recompute=recompute)
