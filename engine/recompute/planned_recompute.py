"""The result of `ts.plan_recompute`: a plan with predicted memory and time, and plans for other budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ...errors import verbs_end_where_called
from ...inspector.capture.forward_program import ForwardProgram
from ...inspector.files import write_file
from ...inspector.graph.graph import Fold, Graph
from ...inspector.renderers import GraphTheme, drawn, saved_page, text_of
from ...inspector.text.report import cells_table
from ...inspector.text.sizes_and_counts import both_units, percent_text, share_text, size_text
from ...inspector.text.text_columns import lines_of
from ..memory.estimates import estimate_sentence
from ..memory.task_memory import difference
from ..memory.timeline import Timeline
from .budget import Budget, Wanted, budget_bytes, budget_of, expect_seconds
from .explain import Decided, RecomputeReasons, reasons
from .module_table import RIGHT, module_cells, module_sentences, ms_text
from .no_plan_reasons import LeftAloneBecause
from .plan import PlanPrediction, RecomputePlan
from .plan_by_task import recompute_signs
from .predicted_memory import RecomputedMemory
from .solvers import FoundDrops, Goal, search

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table


# Shares of the time of recomputing everything, for each of which the lowest peak is searched.
_LIMITS = (0.003, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.18, 0.25, 0.33, 0.43, 0.55, 0.7, 0.85, 1.0)
# Shares of the plain peak, for each of which the lowest time is searched.
_BUDGETS = tuple(share / 100 for share in range(95, 0, -5))
_FOR_BUDGETS = 0.4  # share of the search time spent on _BUDGETS
_WORTH_IT = 0.005  # of the plain peak: the least by which a slower plan has to be lower


@verbs_end_where_called
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlannedRecompute(RecomputePlan):
    """A recompute plan with its predictions and the data they come from, displayed as a table in a notebook.

    `save` writes what `ts.recompute` needs, the prediction and the order, but not the timelines.

    Attributes:
        plain, timeline: predicted memory of the backward without and with the plan.
        left_alone: a sentence that says why nothing is dropped; None if something is.
        left_alone_because: the reason in one word. "within budget": the peak fits the budget without a plan. "too
            small": recording and calling the operations takes longer than the operations. "time": recomputation takes
            longer than `overhead` allows. "no lower peak": no choice lowers the peak. None if something is dropped.
        notes: further notes, as sentences.
        order: the ids of the backward's tasks in the order that was planned for; `policy` runs them in this order.
        order_name: the name of that order.
        met: whether the budget and the overhead are met.
        solver: the solver that found the plan.
        evaluations: number of choices that it evaluated.
        seconds: time that it took.
        program, memory: the recorded forward and its predicted memory.
        recording_ns: time in nanoseconds that recording an operation adds to the forward.
        ratio: measured time of recomputation and recording, divided by the estimated time.
        banned: numbers of the storages whose recomputed bits differed, each with the difference.
        wanted: the requested budget and overhead; None for a plan of `explore`.
        estimates: reasons why its figures are estimates, as in `Timeline.estimates`; empty if they were measured.
    """

    plain: Timeline
    timeline: Timeline
    left_alone: str | None
    notes: tuple[str, ...]
    order: tuple[int, ...]
    order_name: str
    met: bool
    solver: str
    evaluations: int
    seconds: float
    program: ForwardProgram
    memory: RecomputedMemory
    recording_ns: float
    ratio: float = 1.0
    banned: Mapping[int, str] = field(default_factory=dict)
    wanted: Wanted | None = None
    estimates: tuple[str, ...] = ()
    left_alone_because: LeftAloneBecause | None = None

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the backward with the plan, in bytes."""
        return self.timeline.peak_bytes

    @property
    def plain_peak_bytes(self) -> int:
        """The predicted peak of the backward without the plan, in bytes."""
        return self.plain.peak_bytes

    def misfit(self, graph: Graph) -> str | None:
        """Return how this graph differs from the planned forward's graph; None if it does not."""
        return difference(graph, self.plain.graph)

    def why(self, which: str | int) -> RecomputeReasons:
        """Explain why an operation is recomputed or not, with the bytes and times that decide.

        plan.why("attn.softmax")    # a module's path and an operation, by torch's or the kernel's name
        plan.why("blocks.0")        # all operations of a module and its submodules
        plan.why(12)                # an operation's number, as printed by why()

        Args:
            which: an operation's name; a module's path, without its front if you like, or a pattern
                ("blocks.*.attn"); path and name; or a number.

        Raises:
            ValueError: if no operation matches; the message lists similar names.
            TypeError: if `which` is neither a string nor a number.
        """
        plain = prediction_of(self).plain_seconds
        decided = Decided(self.program, self.memory, self.dropped, self.ratio, self.banned, self.wanted, plain)
        return reasons(decided, which)

    def explore(self, seconds: float = 5.0) -> PlanFrontier:
        """Search plans for all budgets, from the plain peak to the lowest, and return them with a slider.

        The forward does not run again.

        Args:
            seconds: time limit of the search.

        Raises:
            ValueError: if `seconds` is not a number of at least 0.
        """
        expect_seconds(seconds)
        began = perf_counter()
        memory = self.memory
        nothing = FoundDrops(frozenset(), memory.levels_if_dropped(()), 0, 0.0)
        current = FoundDrops(self.dropped, memory.levels_if_dropped(self.dropped), 0, 0.0)
        found = [nothing, current]
        longest_ns = sum(each.replay_ns for each in memory.storages if each.droppable)
        lowest = {}
        for products in (False, True):
            last = nothing
            for share in _LIMITS:
                goal = Goal(longest_ns * share, None, products)
                last = search(
                    memory, goal, start=last.dropped, seconds=(1 - _FOR_BUDGETS) * seconds / (2 * len(_LIMITS))
                )
                found.append(last)
            lowest[products] = last.levels.peak_bytes
        for share in _BUDGETS:
            limit = int(share * memory.plain_peak_bytes)
            for products in (False, True):
                if lowest[products] <= limit:
                    cheapest = min(found, key=lambda each: Goal(peak_bytes=limit).rank(each.levels))
                    goal = Goal(peak_bytes=limit, products=products)
                    each_seconds = _FOR_BUDGETS * seconds / (2 * len(_BUDGETS))
                    found.append(search(memory, goal, start=cheapest.dropped, seconds=each_seconds))
        distinct = {each.dropped: each for each in reversed(found)}
        plans = _frontier([replanned(self, each) for each in distinct.values()], self, memory.plain_peak_bytes)
        return PlanFrontier(self, tuple(plans), perf_counter() - began)

    def reckoned(self, dropped: Iterable[int], replay_ns: float) -> tuple[float, float]:
        """Return the estimated seconds for recording and for recomputation in a step, before any measurement."""
        operations = {operation for number in dropped for operation in self.program.storages[number].program}
        recording = len(operations) * self.recording_ns
        return recording / 1e9, max(0.0, replay_ns - recording) / 1e9

    @property
    def within_reach_bytes(self) -> int:
        """Bytes of the plain peak that are saved tensors and can be recomputed."""
        memory, peak = self.memory, self.plain.peak_place
        return sum(
            each.nbytes
            for each, places, held in zip(memory.storages, memory.places, memory.held, strict=True)
            if each.droppable and each.start >= 0 and not held and places and places[-1] >= peak
        )

    @property
    def sentences(self) -> list[str]:
        """The sentences below the table."""
        notes = list(self.notes)
        if not self.met:
            notes.append(
                f"{size_text(self.within_reach_bytes)} of the peak without a plan, {size_text(self.plain_peak_bytes)}, "
                "are saved tensors that can be recomputed; no plan drops the rest, such as gradients."
            )
        if self.left_alone is not None:
            return [self.left_alone, *notes]
        predicted, before, after = self.predicted, self.plain_peak_bytes, self.peak_bytes
        where = "" if self.order_name == "heap" else f" in the order of {self.order_name}"
        found = [
            f"The predicted peak of the backward{where} falls from {size_text(before)} to {size_text(after)}, by "
            f"{share_text(before - after, before)}."
        ]
        if predicted is not None:
            more = predicted.seconds / predicted.plain_seconds - 1
            found.append(
                f"A step of {ms_text(predicted.plain_seconds)} takes {percent_text(more)} longer: "
                f"{ms_text(predicted.replay_seconds)} for recomputation, {ms_text(predicted.recording_seconds)} for "
                "recording the forward."
            )
        if self.order_name != "heap":
            found.append(f"Run the backward in the order of {self.order_name}: ts.backward(loss, policy=plan.policy).")
        return [*found, *module_sentences(self), *notes]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, headings first; see `module_cells`."""
        return module_cells(self)

    @property
    def table(self) -> Table:
        """The table, as a rich Table."""
        return cells_table(self.cells, RIGHT, bold=())

    def __rich__(self) -> Table:
        return self.table

    def __str__(self) -> str:
        rows = self.cells
        if len(rows) == 1:
            return "\n".join(self.sentences)
        return "\n".join([*lines_of(rows, RIGHT), "", *self.sentences])

    def __repr__(self) -> str:
        if self.left_alone is not None:
            return "<PlannedRecompute: nothing dropped>"
        count = sum(each.fate == "dropped" for each in self.storages)
        return (
            f"<PlannedRecompute: {count:,} dropped, {size_text(self.plain_peak_bytes)} to {size_text(self.peak_bytes)}>"
        )

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells if self.left_alone is None else [[]], self.sentences, RIGHT)

    def to_svg(self, *, fold: Fold = "fit", theme: GraphTheme = "auto") -> str:
        """Return the graph as SVG, with signs at tasks that drop, recompute or newly keep tensors.

        Args:
            fold, theme: as in `Graph.save_svg`.
        """
        return text_of(
            "graph as SVG", self.plain.graph, fold=fold, theme=theme, signs=recompute_signs(self, self.order)
        )

    def save_svg(self, path: str | Path, *, fold: Fold = "fit", theme: GraphTheme = "auto") -> Path:
        """Write `to_svg()` to a file and return its path."""
        return write_file(path, self.to_svg(fold=fold, theme=theme))

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Return a plotly figure of the predicted memory over the tasks, without and with the plan."""
        return drawn("levels as a figure", {"without": self.plain, "recomputed": self.timeline}, theme)


@dataclass(frozen=True, eq=False, repr=False)
class PlanFrontier:
    """Plans of one forward, none of which is better than another in both peak and time.

    In a notebook it displays a slider over the plans, with the predicted curve, the table and the storages. It needs no
    kernel, so it also works in a saved notebook and in a saved page.

    Attributes:
        explored: the plan whose `explore` returned this; it is among `plans` unless another plan is better.
        plans: the plans by time of a step, ascending, and so by peak, descending. The first drops nothing. Each can
            be passed to `ts.recompute`.
        seconds: time of the search.
    """

    explored: PlannedRecompute
    plans: tuple[PlannedRecompute, ...]
    seconds: float

    def __repr__(self) -> str:
        low, high = self.plans[-1].peak_bytes, self.plans[0].peak_bytes
        return f"<PlanFrontier of {len(self.plans):,} plans, {size_text(high)} to {size_text(low)}>"

    def within(self, budget: Budget) -> PlannedRecompute:
        """Return the fastest plan whose peak is within a budget.

        Args:
            budget: bytes, as a number or such as "8GiB"; or a share of the peak without recomputation, such as 0.5.

        Raises:
            TypeError, ValueError: if the budget is not valid, or no plan is within it.
        """
        plain = self.plans[0].peak_bytes
        limit = budget_bytes(budget_of(budget), plain)
        for plan in self.plans:
            if plan.peak_bytes <= limit:
                return plan
        lowest = self.plans[-1].peak_bytes
        raise ValueError(
            f"no plan has a peak within {both_units(limit)}; the lowest is {size_text(lowest - limit)} above that, "
            f"{size_text(lowest)} or {share_text(lowest, plain)} of the peak without a plan"
        )

    @property
    def place(self) -> int:
        """The index in `plans` of the fastest plan whose peak is at most that of the explored plan."""
        return self.plans.index(self.within(self.explored.peak_bytes))

    @property
    def asked(self) -> int | None:
        """The index in `plans` of the explored plan; None if it is not among them."""
        return next((place for place, plan in enumerate(self.plans) if plan is self.explored), None)

    @property
    def sentences(self) -> list[str]:
        """Sentences about the origin of the times."""
        if len(self.plans) == 1:
            return []
        if not self.explored.dropped:
            return [
                "Times are estimated from those of single operations, because no plan that drops anything was measured."
            ]
        if self.explored.estimates:
            return [estimate_sentence(self.explored.estimates, "Each figure of time")]
        place = "" if self.asked is None else f" (plan {self.asked} here)"
        return [f"The times of the explored plan{place} were measured; those of the others are estimated from them."]

    @property
    def cells(self) -> list[list[str]]:
        """The plans as text, headings first."""
        found = [["plan", "peak", "of plain peak", "dropped", "recompute time", "recording", "step"]]
        plain = self.plans[0].peak_bytes
        for place, plan in enumerate(self.plans):
            predicted = prediction_of(plan)
            found.append(
                [
                    str(place),
                    size_text(plan.peak_bytes),
                    share_text(plan.peak_bytes, plain),
                    size_text(plan.dropped_bytes),
                    f"{1e3 * predicted.replay_seconds:.2f} ms",
                    f"{1e3 * predicted.recording_seconds:.2f} ms",
                    f"+{percent_text(predicted.seconds / predicted.plain_seconds - 1)}",
                ]
            )
        return found

    def __str__(self) -> str:
        rows = self.cells
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, cells, widths)) for cells in rows]
        return "\n".join([*lines, *([""] if self.sentences else []), *self.sentences])

    def _repr_html_(self) -> str:
        return text_of("frontier as HTML", self)

    def save_html(
        self, path: str | Path, title: str = "A recompute plan", measured: Mapping[str, Timeline] | None = None
    ) -> Path:
        """Write one HTML page that needs neither a kernel nor a network, and return its path.

        Args:
            path: the file to write.
            title: the heading of the page.
            measured: measured memory curves by name, from `ts.profile(make_loss).timeline`, drawn beside the predicted
                ones.

        Raises:
            ValueError: if a measured curve belongs to a different graph.
        """
        return saved_page("frontier as a page", path, self, title, measured or {})


def prediction_of(plan: RecomputePlan) -> PlanPrediction:
    """Return the prediction of a plan of `ts.plan_recompute`, which always has one."""
    assert plan.predicted is not None, "ts.plan_recompute predicts"
    return plan.predicted


def _frontier(found: Iterable[PlannedRecompute], explored: PlannedRecompute, plain: int) -> list[PlannedRecompute]:
    """Return the plans that no other plan beats in both peak and time.

    A plan that is only slightly lower than a faster one is left out, unless it is the explored plan or meets a budget
    that the faster one does not.
    """

    def budgets(plan: PlannedRecompute) -> int:
        return sum(plan.peak_bytes <= int(share * plain) for share in _BUDGETS)

    kept: list[PlannedRecompute] = []
    for each in sorted(found, key=lambda each: (bool(each.dropped), prediction_of(each).seconds, each.peak_bytes)):
        if kept and each.peak_bytes >= kept[-1].peak_bytes:
            continue
        wanted = not kept or each is explored or budgets(each) > budgets(kept[-1])
        if wanted or each.peak_bytes < kept[-1].peak_bytes - _WORTH_IT * plain:
            kept.append(each)
    return kept


def replanned(plan: PlannedRecompute, found: FoundDrops) -> PlannedRecompute:
    """Return a plan that drops another choice, with times estimated from those measured of the given plan."""
    if found.dropped == plan.dropped:
        return plan
    predicted, recomputed = prediction_of(plan), found.levels
    chosen = RecomputePlan.of(plan.program, found.dropped)
    recording, replays = plan.reckoned(chosen.dropped, recomputed.replay_ns)
    if plan.dropped:
        before = plan.reckoned(plan.dropped, plan.memory.levels_if_dropped(plan.dropped).replay_ns)
        if predicted.recording_seconds and before[0]:  # 0 if it was too short to be measured
            recording *= predicted.recording_seconds / before[0]
        if predicted.replay_seconds and before[1]:
            replays *= predicted.replay_seconds / before[1]
    return replace(
        plan,
        storages=chosen.storages,
        predicted=PlanPrediction(
            predicted.plain_levels,
            tuple(recomputed.peaks),
            predicted.plain_seconds,
            replays,
            recording if found.dropped else 0.0,
        ),
        timeline=plan.memory.timeline(found.dropped),
        left_alone=None,
        left_alone_because=None,
        notes=plan.program.notes,
        met=True,
        evaluations=found.evaluations,
        seconds=found.seconds,
        wanted=None,
    )
