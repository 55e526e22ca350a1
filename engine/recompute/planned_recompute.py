"""The result of `ts.plan_recompute`: a plan with its predicted memory and time, and what other budgets would buy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ...errors import verbs_end_where_called
from ...inspector.capture.forward_program import ForwardProgram
from ...inspector.graph.graph import Fold, Graph
from ...inspector.renderers import GraphTheme, drawn, saved_page, text_of
from ...inspector.text.report import cells_table
from ...inspector.text.sizes_and_counts import both_units, percent_text, share_text, size_text
from ...inspector.text.text_columns import lines_of
from ..memory.estimates import estimate_sentence
from ..memory.simulation import difference
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


# Shares of the time that replaying everything would take, for which the lowest peak is searched.
_LIMITS = (0.003, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.18, 0.25, 0.33, 0.43, 0.55, 0.7, 0.85, 1.0)
_BUDGETS = tuple(share / 100 for share in range(95, 0, -5))  # of the plain peak, for which the price is searched
_FOR_BUDGETS = 0.4  # of the time of the search
_WORTH_IT = 0.005  # of the plain peak, by which a plan is lower than one that takes less time


@verbs_end_where_called
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlannedRecompute(RecomputePlan):
    """A recompute plan with what it was made from. In a notebook the table shows itself.

    `save` writes what `ts.recompute` needs, the prediction and the order; the timelines are not in the file.

    Attributes:
        plain, timeline: the memory of the backward without and with it, predicted.
        left_alone: why nothing is dropped, as a sentence; None: something is.
        left_alone_because: the same as a word: "within budget": the peak fits the budget without a plan. "too small":
            recording and calling the operations takes longer than they do. "time": recomputation takes longer than
            `overhead` allows. "no lower peak": no choice lowers the peak. None: something is dropped.
        notes: what else is to be known, in sentences.
        order: the ids of the tasks of the backward that it was planned for; `policy` is what runs it, and `order_name`
            what that order is called.
        met: whether what was asked for is reached.
        solver: what found it; `evaluations`: among how many choices; `seconds`: in what time.
        program, memory: what it was judged by.
        recording_ns: nanoseconds that the forward takes longer for each operation that is noted, to run again.
        ratio: what replays and recording were measured to take, over what was reckoned with.
        banned: by number the storages that did not come out the same when they were made again, and how.
        wanted: what was asked for; None: it is one of the plans of `explore`.
        estimates: why its figures are estimates, as in `Timeline.estimates`; none where forward and backward were run.
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
        """The highest level of the backward with the plan, predicted, in bytes."""
        return self.timeline.peak_bytes

    @property
    def plain_peak_bytes(self) -> int:
        """The same without."""
        return self.plain.peak_bytes

    def misfit(self, graph: Graph) -> str | None:
        """Why its figures are not for this graph; None: it is one of the forward that was planned for."""
        return difference(graph, self.plain.graph)

    def why(self, which: str | int) -> RecomputeReasons:
        """Why an operation is recomputed or not, with the bytes and milliseconds that decide.

        plan.why("attn.softmax")    # a module's path and an operation, as torch or the kernel calls it
        plan.why("blocks.0")        # all operations of a module and of those in it
        plan.why(12)                # by number, as answers tell it

        Args:
            which: an operation's name; a module's path, of which the front may be left out, or a pattern
                ("blocks.*.attn"); both; or a number.

        Raises:
            ValueError: there is none by that name; it has the nearest ones.
            TypeError: it is neither a text nor a number.
        """
        plain = prediction_of(self).plain_seconds
        decided = Decided(self.program, self.memory, self.dropped, self.ratio, self.banned, self.wanted, plain)
        return reasons(decided, which)

    def explore(self, seconds: float = 5.0) -> PlanFrontier:
        """What other budgets would buy: plans from the plain peak to the lowest, with a slider through them.

        The forward does not run again.

        Args:
            seconds: how long to search.

        Raises:
            ValueError: that is no time.
        """
        return explored(self, seconds)

    def reckoned(self, dropped: Iterable[int], replay_ns: float) -> tuple[float, float]:
        """Seconds that recording and replays take of a step, as they were reckoned with before any was measured."""
        operations = {operation for number in dropped for operation in self.program.storages[number].program}
        recording = len(operations) * self.recording_ns
        return recording / 1e9, max(0.0, replay_ns - recording) / 1e9

    @property
    def within_reach_bytes(self) -> int:
        """What plans may let go of, of that which is there at the peak without any."""
        memory, peak = self.memory, self.plain.peak_place
        return sum(
            each.nbytes
            for each, places, held in zip(memory.storages, memory.places, memory.held, strict=True)
            if each.droppable and each.start >= 0 and not held and places and places[-1] >= peak
        )

    @property
    def sentences(self) -> list[str]:
        """What the table says."""
        notes = list(self.notes)
        if not self.met:
            notes.append(
                f"Of the peak without a plan, {size_text(self.plain_peak_bytes)}, "
                f"{size_text(self.within_reach_bytes)} are saved tensors that can be made again; no plan lets go of "
                "the rest, such as gradients."
            )
        if self.left_alone is not None:
            return [self.left_alone, *notes]
        predicted, before, after = self.predicted, self.plain_peak_bytes, self.peak_bytes
        where = "" if self.order_name == "heap" else f", in the order of {self.order_name}"
        found = [
            f"The backward's peak falls from {size_text(before)} to {size_text(after)}, by "
            f"{share_text(before - after, before)}{where}. Predicted."
        ]
        if predicted is not None:
            more = predicted.seconds / predicted.plain_seconds - 1
            found.append(
                f"A step takes {percent_text(more)} longer than {ms_text(predicted.plain_seconds)}: "
                f"{ms_text(predicted.replay_seconds)} for replays, {ms_text(predicted.recording_seconds)} for "
                "recording the forward."
            )
        if self.order_name != "heap":
            found.append(f"It is for the order of {self.order_name}: ts.backward(loss, policy=plan.policy).")
        return [*found, *module_sentences(self), *notes]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first: see `module_cells`."""
        return module_cells(self)

    @property
    def table(self) -> Table:
        """The rows as a table of rich."""
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
            return "<PlannedRecompute: left alone>"
        count = sum(each.fate == "dropped" for each in self.storages)
        return (
            f"<PlannedRecompute: {count:,} dropped, {size_text(self.plain_peak_bytes)} to {size_text(self.peak_bytes)}>"
        )

    def _repr_html_(self) -> str:
        return text_of("findings as HTML", self.cells if self.left_alone is None else [[]], self.sentences, RIGHT)

    def to_svg(self, *, fold: Fold = "fit", theme: GraphTheme = "auto") -> str:
        """The graph with signs at tasks whose saved tensors are let go of, that make them again first, and that newly
        keep others for that. See `Graph.save_svg` for `fold` and `theme`."""
        return text_of(
            "graph as SVG", self.plain.graph, fold=fold, theme=theme, signs=recompute_signs(self, self.order)
        )

    def save_svg(self, path: str | Path, *, fold: Fold = "fit", theme: GraphTheme = "auto") -> Path:
        """Writes `to_svg()` to a file."""
        path = Path(path)
        path.write_text(self.to_svg(fold=fold, theme=theme), encoding="utf-8")
        return path

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """The level over the tasks without and with the plan, the peaks marked. Needs plotly."""
        return drawn("levels as a figure", {"without": self.plain, "recomputed": self.timeline}, theme)


@dataclass(frozen=True, eq=False, repr=False)
class PlanFrontier:
    """Plans of one forward: none is lower than another and takes less time, too. In a notebook it shows itself.

    There a slider goes from plan to plan, and predicted curve, table and storages follow at once: nothing is computed
    any more, so it works in a saved notebook and in a saved page.

    Attributes:
        explored: the plan that it was explored from; it is among `plans`, unless another one is better.
        plans: by the time of a step, ascending, so by peak descending. The first one drops nothing. Each
            can be handed to `ts.recompute`.
        seconds: how long it was searched.
    """

    explored: PlannedRecompute
    plans: tuple[PlannedRecompute, ...]
    seconds: float

    def __repr__(self) -> str:
        low, high = self.plans[-1].peak_bytes, self.plans[0].peak_bytes
        return f"<PlanFrontier of {len(self.plans):,} plans, {size_text(high)} to {size_text(low)}>"

    def within(self, budget: Budget) -> PlannedRecompute:
        """The cheapest plan that stays within a budget.

        Args:
            budget: bytes, as a number or such as "8GiB"; or a share of the peak without recomputation, such as 0.5.

        Raises:
            TypeError, ValueError: it is none; none of the plans stays within it.
        """
        plain = self.plans[0].peak_bytes
        limit = budget_bytes(budget_of(budget), plain)
        for plan in self.plans:
            if plan.peak_bytes <= limit:
                return plan
        lowest = self.plans[-1].peak_bytes
        raise ValueError(
            f"no plan has a peak within {both_units(limit)}: the lowest one has {size_text(lowest)}, "
            f"{share_text(lowest, plain)} of the plain one"
        )

    @property
    def place(self) -> int:
        """The place among `plans` of the cheapest whose peak is no higher than that of the plan that was explored."""
        return self.plans.index(self.within(self.explored.peak_bytes))

    @property
    def asked(self) -> int | None:
        """The place of the plan that was explored; None: it is not among them."""
        return next((place for place, plan in enumerate(self.plans) if plan is self.explored), None)

    @property
    def sentences(self) -> list[str]:
        """Where the times are from."""
        if len(self.plans) == 1:
            return []
        if not self.explored.dropped:
            return ["Times are reckoned from those of single operations: no plan was measured that drops anything."]
        if self.explored.estimates:
            return [estimate_sentence(self.explored.estimates, "Each figure of time")]
        place = "" if self.asked is None else f" (plan {self.asked} here)"
        return [
            f"The times of the plan that was explored{place} were measured; those of the others are reckoned from it."
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The plans as text, headings first."""
        found = [["plan", "peak", "of the plain one", "let go", "replays", "recording", "step"]]
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
        """Writes one HTML page that needs neither a kernel nor a network.

        Args:
            path: where to.
            title: its heading.
            measured: curves of backwards that ran, by name, `ts.profile(make_loss).timeline`, drawn beside the
                predicted ones.

        Raises:
            ValueError: one of them is of another graph.
        """
        return saved_page("frontier as a page", path, self, title, measured or {})


def prediction_of(plan: RecomputePlan) -> PlanPrediction:
    """What a plan of `ts.plan_recompute` should come to."""
    assert plan.predicted is not None, "ts.plan_recompute predicts"
    return plan.predicted


def explored(plan: PlannedRecompute, seconds: float) -> PlanFrontier:
    """See `PlannedRecompute.explore`."""
    expect_seconds(seconds)
    began = perf_counter()
    memory = plan.memory
    nothing = FoundDrops(frozenset(), memory.levels_if_dropped(()), 0, 0.0)
    asked = FoundDrops(plan.dropped, memory.levels_if_dropped(plan.dropped), 0, 0.0)
    found = [nothing, asked]
    whole = sum(each.replay_ns for each in memory.storages if each.droppable)
    lowest = {}
    for products in (False, True):
        last = nothing
        for share in _LIMITS:
            goal = Goal(whole * share, None, products)
            last = search(memory, goal, start=last.dropped, seconds=(1 - _FOR_BUDGETS) * seconds / (2 * len(_LIMITS)))
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
    plans = _frontier([_planned(plan, each) for each in distinct.values()], plan, memory.plain_peak_bytes)
    return PlanFrontier(plan, tuple(plans), perf_counter() - began)


def _frontier(found: Iterable[PlannedRecompute], explored: PlannedRecompute, plain: int) -> list[PlannedRecompute]:
    """Those than which none is lower and takes less time.

    A plan that is lower by next to nothing is left out, but for the one that was explored, and such as meet a budget
    that the one before does not.
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


def _planned(plan: PlannedRecompute, found: FoundDrops) -> PlannedRecompute:
    """The plan that drops this instead. What that takes is reckoned from what was measured of the given plan."""
    if found.dropped == plan.dropped:
        return plan
    predicted, recomputed = prediction_of(plan), found.levels
    chosen = RecomputePlan.of(plan.program, found.dropped)
    recording, replays = plan.reckoned(chosen.dropped, recomputed.replay_ns)
    if plan.dropped:
        before = plan.reckoned(plan.dropped, plan.memory.levels_if_dropped(plan.dropped).replay_ns)
        if predicted.recording_seconds and before[0]:  # at 0 it was too short to be measured
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
