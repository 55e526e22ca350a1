"""Predictions in a deck: the schedules and memory of policies and branches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...engine.execution.accumulation_rule import PYTORCHS, Accumulation
from ...engine.memory.dry_run import dry_run
from ...engine.memory.estimates import bounded_size, estimate_sentence
from ...engine.memory.task_memory import Footprints
from ...engine.memory.timeline import Timeline
from ...engine.planning.simulate import schedule, simulate
from ...engine.schedule.dependencies import queue_lengths
from ...engine.schedule.policy import AnyPolicy, Choice, Policy, is_dynamic, policy_name
from ...engine.session.direct_session import Stepper
from ...engine.session.native_session import NativeSession
from ...inspector.renderers import GraphTheme
from ...inspector.text.report import ShownAsTable
from ...inspector.text.sizes_and_counts import share_text, size_text
from .live_state import in_words, why
from .page_data import Json, schedule_content
from .recompute_data import RecomputeContent

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(ShownAsTable):
    """The predicted memory of a graph under several policies. `ts.compare` measures it with new forwards.

    Attributes:
        timelines: the simulated memory by policy, with the rule of accumulation if rules are compared ("heap, list").
    """

    timelines: Mapping[str, Timeline]

    words = ("policy", "peak in")

    @property
    def rows(self) -> tuple[Timeline, ...]:
        """The timelines, in the order of the policies."""
        return tuple(self.timelines.values())

    @property
    def highest(self) -> Timeline:
        """The timeline with the highest peak, the first of several."""
        return max(self.rows, key=lambda timeline: timeline.peak_bytes)

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, headings first."""
        found = [["policy", "peak", "peak in", "longest queue"]]
        for policy, timeline in self.timelines.items():
            task = timeline.peak_task
            where = "before the first task" if task is None else timeline.graph.describe(task, timeline.peak_place)
            longest = max(queue_lengths(timeline.graph, timeline.order), default=0)
            found.append([policy, size_text(timeline.peak_bytes), where, f"{longest:,}"])
        return found

    @property
    def sentences(self) -> list[str]:
        """The result as sentences."""
        lowest = min(self.timelines, key=lambda policy: self.timelines[policy].peak_bytes)
        low, high = self.timelines[lowest].peak_bytes, self.highest.peak_bytes
        basis = "Predicted; nothing was run."
        reasons = [reason for timeline in self.rows for reason in timeline.estimates]
        estimate = estimate_sentence(reasons)
        why = [estimate] if estimate else []
        if low == high:
            one_rule = len({timeline.accumulation for timeline in self.rows}) == 1
            what = "The order makes no" if one_rule else "Neither order nor rule makes a"
            return [f"{what} difference to the peak: {bounded_size(high, reasons)}. {basis}", *why]
        return [
            f"{lowest} has the lowest peak, {bounded_size(low, reasons)}, {share_text(low, high)} of the highest. "
            f"{basis}",
            *why,
        ]

    def __repr__(self) -> str:
        peaks = ", ".join(f"{policy} {size_text(each.peak_bytes)}" for policy, each in self.timelines.items())
        return f"<Prediction: {peaks}>"

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """Draw the level over the tasks for each policy, with the peaks marked. Needs plotly."""
        from ..pages.memory_figures import memory_figure

        return memory_figure(self.timelines, theme)


_MOST_UNASKED = 5_000  # tasks; a dry run of more takes over half a second
_LARGE = (
    "Predicting the memory of {count:,} tasks takes {time}, in which no task can run. "
    "deck.predict_memory() or %tapescope predict does it."
)
_DRY_RUN_S = 120e-6  # seconds for one task
_AS_ONE = (
    "each task is predicted alone; products that run as one (batch=) allocate copies and keep their factors longer"
)
_RECOMPUTED = (
    "not known from a dry run: storages that ts.recompute holds for recomputation; ts.debug(loss, recompute=plan) "
    "shows the memory that a plan of ts.plan_recompute predicts"
)


class Foresight:
    """The predicted schedules of a session, all from one dry run before its first task.

    Args:
        session: a session that has not run yet.
        retain_graph, create_graph: as passed to the backward.
        recompute: the dropped tensors, and the predictions of the plan.

    Attributes:
        own: the memory of the session's own order, if it is known.
        footprints: the result of the dry run; None without one.
    """

    def __init__(
        self, session: Stepper | NativeSession, retain_graph: bool, create_graph: bool, recompute: RecomputeContent
    ) -> None:
        self._session = session
        self._recompute = recompute
        self._retain_graph = retain_graph
        self._create_graph = create_graph
        self.footprints: Footprints | None = None
        self._note = ""
        if not self.is_small:
            seconds = len(session.graph) * _DRY_RUN_S
            time = "less than a second" if seconds < 1 else f"some {seconds:.0f} s"
            self._note = _LARGE.format(count=len(session.graph), time=time)
        self._was_tried = False
        self._simulated: dict[str, tuple[Json, Timeline | None]] = {}
        self.own: Timeline | None = None
        if self.is_small:
            with suppress(Exception, SystemExit):  # the note gives the reason
                self.make_dry_run()

    @property
    def is_small(self) -> bool:
        """True if the graph is small enough to be predicted automatically."""
        return len(self._session.graph) <= _MOST_UNASKED

    @property
    def is_known(self) -> bool:
        """True if the dry run has been made."""
        return self.footprints is not None

    def make_dry_run(self) -> None:
        """Make the dry run. The user's thread must not run, because a dry run temporarily removes leaves' .grad."""
        self._was_tried = True
        try:
            self.footprints = self._dry_run()
            self._note = ""
        except BaseException as error:  # a node's own code may raise anything; the deck works without a prediction
            self._note = f"Memory was not predicted: {why(error)}"
            raise

    def forget(self, name: str | None = None) -> None:
        """Discard the prediction of the policy of this name, or all predictions."""
        for each in [*self._simulated] if name is None else [name]:
            self._simulated.pop(each, None)

    def release(self) -> None:
        """Release the session's tensors after its end."""
        self.footprints = self.own = None
        self._simulated.clear()

    def _dry_run(self) -> Footprints:
        session = self._session
        if session.over is not None:
            raise ValueError(f"the session is over ({session.over})")
        if session.order:
            raise ValueError("a dry run is possible only before the first task")
        if self._create_graph:
            raise ValueError("create_graph=True keeps tensors for the backward's own graph, whose sizes are unknown")
        footprints = session.footprints or dry_run(session.graph)
        if isinstance(session, Stepper) and session.batches is not None:
            footprints = replace(footprints, limits=(*footprints.limits, _AS_ONE))
        if self._recompute.saves:
            footprints = replace(footprints, limits=(*footprints.limits[:1], _RECOMPUTED, *footprints.limits[1:]))
        # The session's policies also plan with them. Without nodes, because predictions outlive the session.
        session.footprints = replace(footprints, graph=replace(footprints.graph, nodes=()))
        return session.footprints

    def cannot_plan(self, policy: Policy) -> str:
        """Return why this policy cannot plan."""
        return f"policy {policy.name} plans by memory, which is not predicted. {self._note}"

    def _order(self, policy: Policy | Choice) -> list[int]:
        """Return a policy's order from the start.

        Raises:
            ValueError: it plans by memory, which was not predicted.
        """
        if self.footprints is None:
            if isinstance(policy, Policy) and policy.plan is not None:
                raise ValueError(self.cannot_plan(policy))
            return self._schedule(policy)
        return self._schedule(policy, footprints=self.footprints)

    def own_schedule(self, policy: Policy | Choice, order: Sequence[int], by_hand: Sequence[int]) -> Json:
        """Return the session's own schedule: finished and planned tasks."""
        content, self.own = self.schedule(policy, order, by_hand)
        return content

    def others(self, known: dict[str, Policy | Choice], mine: str) -> list[Json]:
        """Return the schedules of other known policies from the start."""
        for name, policy in known.items():
            if name == mine or name in self._simulated or is_dynamic(policy):
                continue
            try:
                order = self._order(policy)
            except Exception:  # a user's policy raises, or plans by memory, which is unknown
                continue
            self._simulated[name] = self.schedule(policy, order)
        return [self._simulated[name][0] for name in known if name in self._simulated and name != mine]

    def timelines(self, mine: str) -> dict[str, Timeline]:
        """Return the memory by policy, that of the live order first; empty without a prediction."""
        if self.own is None:
            return {}
        others = {name: timeline for name, (_, timeline) in list(self._simulated.items()) if timeline is not None}
        return {mine: self.own} | {name: each for name, each in others.items() if name != mine}

    def compare(self, policies: Collection[Policy | Choice], rules: list[Accumulation]) -> Prediction:
        """Predict the memory of the whole backward under each policy and each rule.

        Raises:
            ValueError: memory was not predicted; or a policy decides while the backward runs.
        """
        if self.footprints is None:
            raise ValueError(self._note)
        found = {}
        for policy in policies:
            if is_dynamic(policy):
                raise ValueError(
                    f"policy {policy_name(policy)} decides while the backward runs, so it has no order yet"
                )
            order, name = self._order(policy), policy_name(policy)
            for rule in rules:
                found[name if rules == [self.rule] else rule.of(name)] = self._simulate(order, self.footprints, rule)
        return Prediction(found)

    def completed(self, policy: Policy | Choice, ran: Sequence[int]) -> list[int]:
        """Return the finished tasks and the order of the rest; PyTorch's order for a policy that decides as it runs."""
        if not is_dynamic(policy):
            try:
                return self._schedule(policy, ran)
            except Exception:  # a user's policy may raise here and work when its task runs
                pass
        return self._schedule("heap", ran)

    def _schedule(self, policy: AnyPolicy, ran: Sequence[int] = (), footprints: Footprints | None = None) -> list[int]:
        session = self._session
        graph = session.graph if footprints is None else footprints.graph
        return schedule(graph, policy, session.needed, ran, footprints, session.queues)

    def schedule(
        self, policy: Policy | Choice, order: Sequence[int], by_hand: Sequence[int] = ()
    ) -> tuple[Json, Timeline | None]:
        """Return an order as page data, with its memory if it is known."""
        footprints, note, graph = self.footprints, self._note, self._session.graph
        timeline = self._recompute.timeline(order, self.rule)
        if timeline is None and (other := self._recompute.note()) is not None:
            note = other
        elif timeline is None and footprints is not None:
            try:
                timeline = self._simulate(order, footprints, self.rule)
            except Exception as error:  # the deck works without it
                note = f"Memory was not predicted: {in_words(error)}"
        content = schedule_content(graph, policy, order, by_hand=by_hand, timeline=timeline, note=note)
        if not self._was_tried and note == self._note:
            content["predict_s"] = len(graph) * _DRY_RUN_S
        return self._recompute.with_plan(content, self.rule), timeline

    @property
    def rule(self) -> Accumulation:
        """The session's rule for summing gradients."""
        return self._session.accumulation if isinstance(self._session, Stepper) else PYTORCHS

    def _simulate(self, order: Sequence[int], footprints: Footprints, rule: Accumulation) -> Timeline:
        return simulate(
            footprints.graph,
            order,
            footprints,
            retain_graph=self._retain_graph,
            accumulate=rule.accumulate,
            release=rule.release,
        )
