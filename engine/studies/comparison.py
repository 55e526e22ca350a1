"""The result of `ts.compare`: a row for each policy, differences between orders, and sentences."""

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
"""The suffix of rows whose forward ran under a plan; a number may follow."""

GRAPH_KEPT = ", graph kept"
"""The suffix of rows whose backward kept the graph (`retain_graph=True`)."""

_WORTH_A_REASON = 0.01  # error of a dry run, as a share of the peak, that gets an explanation


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The results of one policy.

    Attributes:
        policy: the policy's name, with the accumulation rule if it is not PyTorch's ("heap", "heap, list"), with "graph
            kept" if the backward kept the graph, and with "recomputed" if the forward ran under a plan.
        timeline: the measured memory.
        times_ns: nanoseconds of each backward without recording, on new forwards, alternating with the other policies.
            Times at the same index are of the same round.
        longest_queue: the largest number of tasks ready at once, as `Run.longest_queue` counts them.
        predicted: the memory simulated in this order from the run of the policy `calibrated_by`; None without another
            run or a prediction. Under a plan, or if there is no other run, it is the plan's prediction.
        planned_levels: the prediction of a loaded plan, which has only the highest level of each task, in bytes.
        dry_run_bytes: the peak predicted before any backward ran; None if the order was unknown.
        dry_run_estimates: the reasons why it is an estimate, as in `Timeline.estimates`.
        dry_run_start_bytes: the predicted level at the start of the backward.
        keeps_graph: whether the backward kept the graph (`retain_graph=True`).
        plan: the plan that the forward ran under; None for a plain one.
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
    keeps_graph: bool = False

    @property
    def peak_bytes(self) -> int:
        """The measured peak of the backward."""
        return self.timeline.peak_bytes

    @property
    def elapsed_ns(self) -> float:
        """The median time of a backward in nanoseconds."""
        return median(self.times_ns)

    @property
    def predicted_bytes(self) -> int | None:
        """The predicted peak of the backward; None without a prediction."""
        return max(self.planned_levels, default=None) if self.predicted is None else self.predicted.peak_bytes

    @property
    def predicted_levels(self) -> Sequence[int]:
        """The predicted highest level while each task runs, in bytes, by position; empty without a prediction."""
        return self.planned_levels if self.predicted is None else self.predicted.task_peaks


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two orders. `str()` returns the sentence.

    Attributes:
        place: the first position at which they differ, from 0.
        first, second: the tasks that they run there; None if an order has ended.
        sentence: the difference in words.
    """

    place: int
    first: Task | None
    second: Task | None
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False)
class Comparison(ShownAsTable):
    """One program under several policies, displayed as a table in a notebook.

    Attributes:
        graph: the graph, without its nodes, which would keep the tensors on a custom Function's `ctx`.
        rows: the results in the order in which the policies ran.
        elsewhere: the memory of the same runs on each of the other devices.
        step: the training step that contains this forward and backward; None if none was passed.
    """

    graph: Graph
    rows: tuple[Row, ...]
    elsewhere: tuple[Comparison, ...] = ()
    step: TrainingStep | None = None

    words = ("policy", "peak in")

    def __getitem__(self, policy: str) -> Row:
        """Return the row of a policy.

        Raises:
            ValueError: if the policy is not in the comparison.
        """
        return row_called(policy, ((row.policy, row) for row in self.rows), "policy")

    def step_bytes(self, policy: str) -> int:
        """Return the peak of the whole step if its backward ran as this row, with parameters and optimizer state.

        Raises:
            ValueError: if no step was passed.
        """
        if self.step is None:
            raise ValueError("no step was passed; use ts.compare(make_loss, step=ts.profile_step(function))")
        there, outside = self.step.beside_backward
        timeline = self[policy].timeline
        return max(outside, there + max(timeline.peak_bytes, timeline.forward_peak_bytes or 0))

    @property
    def before(self) -> Baseline:
        """Bytes allocated on this device before the forwards, which are not counted."""
        return self.rows[0].timeline.baseline

    @property
    def device(self) -> str:
        """The device whose memory this is."""
        return self.rows[0].timeline.device

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices whose memory was measured, this one first."""
        return (self.device, *(each.device for each in self.elsewhere))

    def on(self, device: torch.device | str) -> Comparison:
        """Return the comparison of the same runs on another device.

        Raises:
            TypeError, ValueError: if the argument is not a device, or not one of `devices`.
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
        """Explain the peak under a policy."""
        row = self[policy]
        if policy not in self._reports:
            others = {other.policy: other.peak_bytes for other in self.rows if other is not row}
            elsewhere = tuple(each[policy].timeline for each in self.elsewhere)
            self._reports[policy] = peak_report(row.timeline, others, elsewhere=elsewhere)
        return self._reports[policy]

    def first_divergence(self, first: str, second: str) -> Divergence | None:
        """Return the first difference between the orders of two policies; None if they are equal."""
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
                sentence = f"{first} and {second} differ {until}: {does[0]}; {does[1]}."
                return Divergence(place, tasks[0], tasks[1], sentence)
        return None

    def _does(self, policy: str, task: Task | None, other: str, others: Sequence[int]) -> str:
        """Say which task a policy runs there, and its position in the other order, because names may be equal."""
        if task is None:
            return f"{policy} has ended"
        later = f", which {other} runs {nth(others.index(task.id) + 1)}" if task.id in others else ""
        return f"{policy} runs {self.graph.describe(task)}{later}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The table's content in sentences."""
        return (
            *self._of_peaks(),
            *self._of_other_peaks(),
            *self._of_predictions(),
            *self._of_recomputed(),
            *self._of_step(),
        )

    def _of_step(self) -> Iterator[str]:
        """Yield sentences about the memory of the whole step, and about differences from the measured step."""
        if self.step is None:
            return
        there, outside = self.step.beside_backward
        yield (
            f"When the forward begins, the step has {size_text(there)} allocated. Outside of forward and backward its "
            f"peak is {size_text(outside)}."
        )
        measured = self.step.peak_bytes
        row = next((row.policy for row in self.rows if row.policy == "heap"), None)
        if row is not None and self.step_bytes(row) != measured:
            yield (
                f"The peaks of the whole step are estimates: the step was measured with {size_text(measured)}, and "
                f"calculated with {size_text(self.step_bytes(row))} from the backward here, whose gradients or batch "
                "differ."
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

    def _of_other_peaks(self) -> Iterator[str]:
        """Yield sentences about the peaks on other devices, and about forwards that need more than the backward."""
        if self.elsewhere:
            yield f"That is on {self.device}."
        for each in self.elsewhere:
            peaks = each._of_peaks() or (f"The peak is {size_text(each.highest.peak_bytes)}.",)
            yield f"On {each.device}: {peaks[0]}"
        for plan in dict.fromkeys(row.plan for row in self.rows):
            rows = [row for row in self.rows if row.plan is plan]
            forward = max(row.timeline.forward_peak_bytes or 0 for row in rows)
            if lower := [row.policy for row in rows if row.peak_bytes < forward]:
                under = "any of these policies" if len(lower) == len(self.rows) > 1 else joined(lower)
                yield (
                    f"The forward's own peak, {size_text(forward)}, is higher than that of the backward under {under}, "
                    "and no order changes it."
                )

    def _of_predictions(self) -> Iterator[str]:
        """Yield a sentence if a prediction from another run is an estimate, or the dry run is off."""
        rows = [row for row in self.rows if row.predicted is not None and row.predicted.estimates]
        reasons = (reason for row in rows if row.predicted is not None for reason in row.predicted.estimates)
        if estimate := estimate_sentence(reasons, f"The prediction for {joined([row.policy for row in rows])}"):
            yield estimate
        off = [
            (abs(row.dry_run_bytes - row.peak_bytes) / row.peak_bytes, row)
            for row in self.rows
            if row.dry_run_bytes is not None and row.peak_bytes
        ]
        share, row = max(off, key=itemgetter(0), default=(0.0, None))
        if row is not None and share > _WORTH_A_REASON:
            why = estimate_sentence(row.dry_run_estimates)
            if not why:
                gap = row.peak_bytes - (row.dry_run_bytes or 0)
                left = row.timeline.start_bytes - (row.dry_run_start_bytes or 0)
                phase = "forward left" if left == gap else "backward allocated"
                more = f"{size_text(abs(gap))} {'more' if gap > 0 else 'less'}"
                why = f"The {phase} {more} than the dry run predicted, for an unknown reason."
            yield f"The dry run is off by {100 * share:.1f} % under {row.policy}. {why}"

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
            yield (
                "Times are of the backward alone. They include recomputation, but not the time that recording adds to "
                "the forward."
            )

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict per policy, for `pandas.DataFrame(comparison.records())`, other devices' peaks last."""
        return [
            {
                "policy": row.policy,
                "peak_bytes": row.peak_bytes,
                "average_bytes": row.timeline.average_bytes,
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
        """Return the table as rows of text, the headings first."""
        elsewhere = [f"on {each.device}" for each in self.elsewhere]
        peak = f"peak on {self.device}" if elsewhere else "peak"
        headings = ["policy", peak, *elsewhere, "predicted", "dry run", "peak in", "longest queue", "time"]
        if self.step is not None:
            headings.insert(2 + len(elsewhere), "whole step")
        # Keeping the graph often changes the average and not the peak.
        average = any(row.keeps_graph for row in self.rows)
        if average:
            headings.insert(2 + len(elsewhere), "average")
        return [headings, *(list(self._cells(row, average)) for row in self.rows)]

    def _cells(self, row: Row, average: bool) -> Iterator[str]:
        timeline = row.timeline
        yield row.policy
        yield size_text(row.peak_bytes)
        for each in self.elsewhere:
            yield size_text(each[row.policy].peak_bytes)
        if average:
            yield "–" if timeline.average_bytes is None else size_text(round(timeline.average_bytes))
        if self.step is not None:
            yield size_text(self.step_bytes(row.policy))
        yield predicted_text(row.predicted_bytes, row.peak_bytes)
        yield predicted_text(row.dry_run_bytes, row.peak_bytes)
        if timeline.peak_task is None:
            yield "before the first task"
        else:
            name = task_name(self.graph.tasks[timeline.peak_task])
            yield f"{timeline.peak_place + 1:,} of {len(timeline.order):,}, {name}"
        yield f"{row.longest_queue:,}"
        from ..api.time_backwards import Spread

        noise = Spread.of(row.times_ns).half_width
        yield f"{row.elapsed_ns / 1e6:.1f} ms{f' ± {100 * noise:.0f} %' if noise >= 0.1 else ''}"

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
        """Draw the level over the tasks for each policy, with the peaks marked. Needs plotly."""
        return drawn("levels as a figure", self.timelines, theme)

    def lifetimes_figure(self, policy: str, theme: GraphTheme = "auto", *, clock: bool = False) -> go.Figure:
        """Draw one bar per storage, the largest by bytes × time first. Needs plotly.

        Args:
            policy: a policy of the comparison.
            theme: "light" or "dark".
            clock: draw over milliseconds instead of over tasks.

        Raises:
            ValueError: if the policy is not in the comparison, or no clock was recorded.
        """
        return drawn("lifetimes as a figure", self[policy].timeline, theme, clock=clock)

    @property
    def timelines(self) -> dict[str, Timeline]:
        """The measured memory by policy."""
        return {row.policy: row.timeline for row in self.rows}

    def save_html(self, path: str | Path, title: str = "Memory by policy") -> Path:
        """Write one page with the table, all figures and the peak of each policy explained.

        The page works offline, from file:// too, and follows the reader's light or dark theme.
        """
        return saved_page("comparison as a page", path, self, title)


def predicted_text(predicted: int | None, measured: int) -> str:
    """Return a predicted peak with its error; `exact` if it equals the measured one, a dash without a prediction."""
    if predicted is None:
        return "–"
    if predicted == measured:
        return "exact"
    if not measured:
        return size_text(predicted)
    return f"{size_text(predicted)} ({100 * (predicted - measured) / measured:+.2f} %)"
