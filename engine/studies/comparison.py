"""What `ts.compare` finds: a row for each policy, where two orders part, and what the table says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ...inspector.graph.graph import Graph, Task
from ...inspector.graph.phrases import joined, task_name
from ...inspector.renderers import GraphTheme, drawn, saved_page
from ...inspector.text.report import ShownAsTable, row_called
from ...inspector.text.sizes_and_counts import counted, nth, size_text
from ..memory.baseline import Baseline
from ..memory.device_choice import chosen_device
from ..memory.estimates import estimate_sentence
from ..memory.timeline import Timeline
from ..recompute.plan import RecomputePlan
from ..recording.peak_report import PeakReport, peak_report

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import torch

    from ..training.step import TrainingStep

RECOMPUTED = ", recomputed"
"""What the names of rows end in whose forward ran by a plan; a number may follow."""

_WORTH_A_REASON = 0.01  # of a peak


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What one policy did.

    Attributes:
        policy: its name, with the rule of accumulation where that is not PyTorch's: "heap", "heap, list"; with
            "recomputed" if the forward ran under a plan.
        timeline: the memory measured.
        times_ns: nanoseconds of each backward whose memory was not recorded, on fresh forwards, taken in turns with the
            other policies'; a number at the same place is of the same round.
        longest_queue: the most tasks that were ready at once.
        predicted: the memory simulated in this order from the run of the policy `calibrated_by`; None where there was
            no other run, or no prediction. Of a recomputed forward, and of the plain one where there is no other run,
            what the plan predicts for this order.
        planned_levels: the same of a plan that was loaded, which has no more than the highest level of each task, in
            bytes.
        dry_run_bytes: the peak that was predicted before any backward had run; None where the order was not known.
        dry_run_estimates: why that is an estimate, as in `Timeline.estimates`.
        dry_run_start_bytes: of that the level as the backward starts.
        plan: the recompute plan that the forward ran under, or None.
    """

    policy: str
    timeline: Timeline
    times_ns: tuple[int, ...]
    longest_queue: int
    predicted: Timeline | None = None
    calibrated_by: str | None = None
    dry_run_bytes: int | None = None
    dry_run_estimates: tuple[str, ...] = ()
    plan: RecomputePlan | None = None
    planned_levels: tuple[int, ...] = ()
    dry_run_start_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The highest level of the backward, measured."""
        return self.timeline.peak_bytes

    @property
    def elapsed_ns(self) -> float:
        """Nanoseconds of a backward: the median of its times."""
        return median(self.times_ns)

    @property
    def predicted_bytes(self) -> int | None:
        """The same, predicted; None where nothing is."""
        return max(self.planned_levels, default=None) if self.predicted is None else self.predicted.peak_bytes

    @property
    def predicted_levels(self) -> Sequence[int]:
        """The highest level while each task runs, predicted, in bytes, by place; empty where nothing is."""
        return self.planned_levels if self.predicted is None else self.predicted.task_peaks


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two orders part. As text it is the sentence.

    Attributes:
        place: the first place at which they differ, from 0.
        first, second: the task which each of them runs there; None where it has ended.
        sentence: both, in words.
    """

    place: int
    first: Task | None
    second: Task | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class Comparison(ShownAsTable):
    """One program under several policies. In a notebook the table shows itself.

    Attributes:
        graph: the graph, without its nodes: these would keep what a custom Function put on its `ctx`.
        rows: in the order in which the policies ran.
        elsewhere: the same runs' memory on each of the other devices.
        step: a training step of which this is the forward and the backward; None: none was given.
    """

    graph: Graph
    rows: tuple[Row, ...]
    elsewhere: tuple[Comparison, ...] = ()
    step: TrainingStep | None = None

    words = ("policy", "peak in")

    def __getitem__(self, policy: str) -> Row:
        """The row of a policy.

        Raises:
            ValueError: it is not compared here.
        """
        return row_called(policy, ((row.policy, row) for row in self.rows), "is not compared here; compared are")

    def step_bytes(self, policy: str) -> int:
        """The peak of the whole step, if its backward ran as this row: with parameters, optimizer state, and what else
        there is of it.

        Raises:
            ValueError: no step was given.
        """
        if self.step is None:
            raise ValueError("no step was given: ts.compare(make_loss, step=ts.profile_step(function))")
        there, outside = self.step.beside_backward
        timeline = self[policy].timeline
        return max(outside, there + max(timeline.peak_bytes, timeline.forward_peak_bytes or 0))

    @property
    def before(self) -> Baseline:
        """What was there before the forwards on this device, and is not counted."""
        return self.rows[0].timeline.baseline

    @property
    def device(self) -> str:
        """Whose memory this is."""
        return self.rows[0].timeline.device

    @property
    def devices(self) -> tuple[str, ...]:
        """Whose memory was measured, this one's first."""
        return (self.device, *(each.device for each in self.elsewhere))

    def on(self, device: torch.device | str) -> Comparison:
        """The same runs, and their memory on another device.

        Raises:
            TypeError, ValueError: that is no device, or not one of these.
        """
        found = chosen_device(device, self.devices)
        return next(each for each in (self, *self.elsewhere) if each.device == found)

    @property
    def lowest(self) -> Row:
        """The row with the lowest peak, the first of several."""
        return min(self.rows, key=lambda row: row.peak_bytes)

    @property
    def highest(self) -> Row:
        """The row with the highest peak, the first of several."""
        return max(self.rows, key=lambda row: row.peak_bytes)

    @cached_property
    def _reports(self) -> dict[str, PeakReport]:
        return {}

    def peak(self, policy: str) -> PeakReport:
        """The peak under a policy, explained."""
        row = self[policy]
        if policy not in self._reports:
            others = {other.policy: other.peak_bytes for other in self.rows if other is not row}
            elsewhere = tuple(each[policy].timeline for each in self.elsewhere)
            self._reports[policy] = peak_report(row.timeline, others, elsewhere=elsewhere)
        return self._reports[policy]

    def first_divergence(self, first: str, second: str) -> Divergence | None:
        """Where the orders of two policies part; None if they are the same."""
        orders = [self[policy].timeline.order for policy in (first, second)]
        longest = max(map(len, orders))
        for place in range(longest):
            ids = [order[place] if place < len(order) else None for order in orders]
            if ids[0] != ids[1]:
                tasks = [None if task is None else self.graph.tasks[task] for task in ids]
                does = [
                    self._does(first, tasks[0], second, orders[1]),
                    self._does(second, tasks[1], first, orders[0]),
                ]
                same = {0: "from the start", 1: "after the first task, which is the same"}
                until = same.get(place, f"after {place:,} tasks, which are the same")
                sentence = f"{first} and {second} part {until}: {does[0]}; {does[1]}."
                return Divergence(place, tasks[0], tasks[1], sentence)
        return None

    def _does(self, policy: str, task: Task | None, other: str, others: Sequence[int]) -> str:
        """What a policy does where two part, and when the other one does it: by name alone they may be alike."""
        if task is None:
            return f"{policy} has ended"
        later = f", which {other} runs {nth(others.index(task.id) + 1)}" if task.id in others else ""
        return f"{policy} runs {self.graph.describe(task)}{later}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the table says, in words."""
        return (
            *self._of_peaks(),
            *self._of_elsewhere(),
            *self._of_forward(),
            *self._of_predicted(),
            *self._of_dry_run(),
            *self._of_recomputed(),
            *self._of_step(),
        )

    def _of_step(self) -> Iterator[str]:
        """What the whole step has, and where it was not so in the step that was measured."""
        if self.step is None:
            return
        there, outside = self.step.beside_backward
        yield (
            f"Of the whole step {size_text(there)} are there as the forward begins, and {size_text(outside)} at most "
            "outside of forward and backward."
        )
        measured = self.step.peak_bytes
        row = next((row.policy for row in self.rows if row.policy == "heap"), None)
        if row is not None and self.step_bytes(row) != measured:
            yield (
                f"It is an estimate: the step was measured with {size_text(measured)}, and is "
                f"{size_text(self.step_bytes(row))} by the backward here, whose gradients or batch are others."
            )

    def _of_peaks(self) -> tuple[str, ...]:
        low, high = self.lowest, self.highest
        if low.peak_bytes == high.peak_bytes:
            one_rule = len({row.timeline.accumulation for row in self.rows}) == 1
            what = "The order makes" if one_rule else "Neither order nor rule makes a"
            return (f"{what} {'no ' if one_rule else ''}difference to the peak.",) if len(self.rows) > 1 else ()
        more, ratio = high.peak_bytes - low.peak_bytes, high.peak_bytes / max(low.peak_bytes, 1)
        share = f"{100 * (ratio - 1):.1f} %" if ratio >= 1.001 else "under 0.1 %"
        how = f"{ratio:.1f} times that of" if ratio >= 1.5 else f"{size_text(more)} ({share}) more than"
        parted = self.first_divergence(high.policy, low.policy)
        return (
            f"The peak of {high.policy} is {size_text(high.peak_bytes)}, {how} {low.policy}, "
            f"{size_text(low.peak_bytes)}.",
            *([parted.sentence] if parted else []),
        )

    def _of_elsewhere(self) -> Iterator[str]:
        """The other devices: which of the peaks is where."""
        if self.elsewhere:
            yield f"That is on {self.device}."
        for each in self.elsewhere:
            peaks = each._of_peaks() or (f"The peak is {size_text(each.highest.peak_bytes)}.",)
            yield f"On {each.device}: {peaks[0]}"

    def _of_forward(self) -> Iterator[str]:
        """Yield a sentence for each forward whose peak is higher than that of the backward; a plan changes both."""
        for plan in dict.fromkeys(row.plan for row in self.rows):
            rows = [row for row in self.rows if row.plan is plan]
            forward = max(row.timeline.forward_peak_bytes or 0 for row in rows)
            if lower := [row.policy for row in rows if row.peak_bytes < forward]:
                under = "any of these policies" if len(lower) == len(self.rows) > 1 else joined(lower)
                yield (
                    f"The forward's own peak, {size_text(forward)}, is higher than that of the backward under {under}, "
                    "and no order changes it."
                )

    def _of_predicted(self) -> Iterator[str]:
        """Where what a run foretells of another order is an estimate."""
        rows = [row for row in self.rows if row.predicted is not None and row.predicted.estimates]
        reasons = (reason for row in rows if row.predicted is not None for reason in row.predicted.estimates)
        if estimate := estimate_sentence(reasons, f"What is predicted of {joined([row.policy for row in rows])}"):
            yield estimate

    def _of_dry_run(self) -> Iterator[str]:
        off = [
            (abs(row.dry_run_bytes - row.peak_bytes) / row.peak_bytes, row)
            for row in self.rows
            if row.dry_run_bytes is not None and row.peak_bytes
        ]
        share, row = max(off, key=itemgetter(0), default=(0.0, None))
        if row is not None and share > _WORTH_A_REASON:
            yield f"The dry run is off by {100 * share:.1f} % under {row.policy}. {_why_off(row)}"

    def _of_recomputed(self) -> Iterator[str]:
        for row in self.rows:
            if row.plan is not None and not row.plan.dropped:
                yield f"{row.policy}: its plan drops nothing."
            elif row.plan is not None:
                again = counted(len({each.made_by for each in row.plan.storages if each.is_dropped}), "operation")
                kept = f", {size_text(row.plan.newly_kept_bytes)} newly kept" if row.plan.newly_kept_bytes else ""
                yield (
                    f"{row.policy}: {size_text(row.plan.dropped_bytes)} of saved tensors are dropped{kept}, and the "
                    f"backward recomputes {again}."
                )
        if any(row.plan is not None for row in self.rows):
            yield "Times are of the backward alone. They include recomputation, but not what it adds to the forward."

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per policy, for `pandas.DataFrame(comparison.records())`. Other devices' peaks come last."""
        return [
            {
                "policy": row.policy,
                "peak_bytes": row.peak_bytes,
                "forward_peak_bytes": row.timeline.forward_peak_bytes,
                **({} if self.step is None else {"step_peak_bytes": self.step_bytes(row.policy)}),
                "predicted_bytes": row.predicted_bytes,
                "calibrated_by": row.calibrated_by,
                "dry_run_bytes": row.dry_run_bytes,
                "peak_place": row.timeline.peak_place,
                "peak_task": row.timeline.peak_task,
                "start_bytes": row.timeline.start_bytes,
                "end_bytes": row.timeline.end_bytes,
                "longest_queue": row.longest_queue,
                "elapsed_ns": row.elapsed_ns,
                **{f"peak_bytes_{each.device}": each[row.policy].peak_bytes for each in self.elsewhere},
            }
            for row in self.rows
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        elsewhere = [f"on {each.device}" for each in self.elsewhere]
        peak = f"peak on {self.device}" if elsewhere else "peak"
        headings = ["policy", peak, *elsewhere, "predicted", "dry run", "peak in", "longest queue", "time"]
        if self.step is not None:
            headings.insert(2 + len(elsewhere), "whole step")
        return [headings, *(list(self._cells(row)) for row in self.rows)]

    def _cells(self, row: Row) -> Iterator[str]:
        timeline = row.timeline
        yield row.policy
        yield size_text(row.peak_bytes)
        for each in self.elsewhere:
            yield size_text(each[row.policy].peak_bytes)
        if self.step is not None:
            yield size_text(self.step_bytes(row.policy))
        yield "–" if row.predicted_bytes is None else _against(row.predicted_bytes, row.peak_bytes)
        yield "–" if row.dry_run_bytes is None else _against(row.dry_run_bytes, row.peak_bytes)
        if timeline.peak_task is None:
            yield "before the first task"
        else:
            name = task_name(self.graph.tasks[timeline.peak_task])
            yield f"{timeline.peak_place + 1:,} of {len(timeline.order):,}, {name}"
        yield f"{row.longest_queue:,}"
        yield f"{row.elapsed_ns / 1e6:.1f} ms"

    def __repr__(self) -> str:
        peaks = ", ".join(f"{row.policy} {size_text(row.peak_bytes)}" for row in self.rows)
        return f"<Comparison of {len(self.graph):,} tasks: {peaks}>"

    def without(self, row: Row) -> Row | None:
        """Return the row of the same policy without a plan; None if there is none, or it is this row."""
        name = row.policy.rpartition(RECOMPUTED)[0]
        return next((other for other in self.rows if row.plan is not None and other.policy == name), None)

    def recomputed_figure(self, policy: str, theme: GraphTheme = "auto") -> go.Figure:
        """Return a figure of the memory of a row with a plan and of the one without, each measured and predicted.

        Needs plotly.

        Raises:
            ValueError: if the policy is not in the comparison, or its forward ran without a plan.
        """
        return drawn("recomputation comparison as a figure", self, self[policy], theme)

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """The level over the tasks for each policy, the peaks marked. Needs plotly."""
        return drawn("levels as a figure", self.timelines, theme)

    def lifetimes_figure(self, policy: str, theme: GraphTheme = "auto", *, clock: bool = False) -> go.Figure:
        """One bar per storage, the largest by bytes × time first. Needs plotly.

        Args:
            policy: one of those compared.
            theme: "light" or "dark".
            clock: draw over milliseconds instead of over tasks.

        Raises:
            ValueError: the policy is not compared here, or no clock was recorded.
        """
        return drawn("lifetimes as a figure", self[policy].timeline, theme, clock=clock)

    @property
    def timelines(self) -> dict[str, Timeline]:
        """The memory measured, by policy."""
        return {row.policy: row.timeline for row in self.rows}

    def save_html(self, path: str | Path, title: str = "Memory by policy") -> Path:
        """Write one page with the table, all figures and the peak of each policy explained.

        The page works offline, from file:// too, and follows the reader's light or dark theme.
        """
        return saved_page("comparison as a page", path, self, title)


def _why_off(row: Row) -> str:
    """Return what the dry run is known not to count, or where it differs from the measured run."""
    if estimate := estimate_sentence(row.dry_run_estimates):
        return estimate
    assert row.dry_run_bytes is not None
    gap = row.peak_bytes - row.dry_run_bytes
    left = row.timeline.start_bytes - (row.dry_run_start_bytes or 0)
    much = f"{size_text(abs(gap))} {'more' if gap > 0 else 'less'}"
    what = "forward left" if left == gap else "backward took"
    return f"The {what} {much} than the dry run found; why is not known."


def _against(predicted: int, measured: int) -> str:
    if predicted == measured:
        return "exact"
    if not measured:
        return size_text(predicted)
    return f"{size_text(predicted)} ({100 * (predicted - measured) / measured:+.2f} %)"
