"""`ts.plan_order`: the peak of each order, the least of them, and how far that is from what no order can be below."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from torch import nn

from ...inspector.capture.build_graph import graph_meant
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.graph import Graph, Outputs
from ...inspector.graph.phrases import joined
from ...inspector.renderers import GraphTheme, drawn
from ...inspector.text.progress import silent, telling
from ...inspector.text.report import ShownAsTable, cells_table, row_called
from ...inspector.text.sizes_and_counts import percent_text, size_text
from ...inspector.validation import expect, expect_callable
from ..memory.baseline import constants_sentence
from ..memory.estimates import bounded_size, estimate_sentence
from ..memory.simulation import difference
from ..memory.task_memory import Footprints, for_graph
from ..memory.timeline import Timeline
from ..schedule.dependencies import queue_lengths
from ..schedule.policy import AnyPolicy, Choice, Policy, policy_name
from ..schedule.ready_queue import PolicyError
from .lower_bound import lower_bound
from .policies import PORTFOLIO, find_policy
from .policy_orders import PlannedOrder, planned_order
from .scheduling_problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table

    from .local_search import SearchResult


_EXACT_TASKS = 1_000  # up to so many the least peak is looked for, half of the time that is given


@dataclass(frozen=True, eq=False)
class OrderPlan(ShownAsTable):
    """Several orders of one backward, judged before it runs. In a notebook the table shows itself.

    Attributes:
        graph: the graph, which has its nodes as long as the loss exists.
        footprints: what its tasks allocate, which all is predicted from.
        rows: as the policies were given; then what was searched for.
        bound_bytes: no legal order has a lower peak.
        bound: why.
        proven: whether no order beats the best, by this prediction.
        seconds: what all took, a dry run included.
        notes: what was tried in vain, and why the prediction is an estimate, in sentences.
        estimates: why the prediction is an estimate, as in `Timeline.estimates`.
    """

    graph: Graph
    footprints: Footprints
    rows: tuple[PlannedOrder, ...]
    bound_bytes: int
    bound: str
    seconds: float
    notes: tuple[str, ...] = ()
    estimates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.graph.for_result)

    def __getitem__(self, policy: str) -> PlannedOrder:
        """The row of a policy.

        Raises:
            ValueError: it was not planned here.
        """
        return row_called(policy, ((row.policy, row) for row in self.rows), "was not planned here; planned were")

    @property
    def best(self) -> PlannedOrder:
        """The row with the lowest peak, the first of several."""
        return min(self.rows, key=lambda row: row.peak_bytes)

    @property
    def order(self) -> tuple[int, ...]:
        """The best order."""
        return self.best.order

    @property
    def proven(self) -> bool:
        """Whether no order is better than the best."""
        return self.best.peak_bytes <= self.bound_bytes

    @property
    def policy(self) -> Policy:
        """The best order as a policy, for a backward of this graph or of the same forward, run again."""
        best = self.best

        def planned(problem: Problem, ran: Sequence[int]) -> list[int]:
            if (other := difference(problem.graph, self.graph)) is not None:
                raise ValueError(f"this order was planned for another graph: {other}; plan again")
            gone, runs = set(ran), set(problem.tasks)
            return [*ran, *(task for task in best.order if task in runs and task not in gone)]

        return Policy(f"planned {best.policy}", f"an order found by {best.policy}", plan=planned)

    def above(self, row: PlannedOrder) -> float:
        """By what share its peak is above the bound: 0.05 for 5 %."""
        return row.peak_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0

    def timeline(self, policy: str) -> Timeline:
        """The memory under a policy, simulated."""
        return Problem(self.footprints.graph, self.footprints).timeline(self[policy].order)

    @property
    def sentences(self) -> list[str]:
        """What the table says."""
        best, count = self.best, len(self.rows)
        peak = bounded_size(best.peak_bytes, self.estimates)
        equals = [row.policy for row in self.rows if row.peak_bytes == best.peak_bytes]
        if count > 1 and len(equals) == count:
            found = [f"All {count} orders have the same peak, {peak}. Predicted; nothing was run."]
        else:
            least = f"{joined(equals)} {'need' if len(equals) > 1 else 'needs'} least"
            found = [f"{least}, {peak}. Predicted; nothing was run."]
        if self.proven:
            found.append(f"No order is predicted to be better: {self.bound}")
        else:
            above = percent_text(self.above(best))
            found.append(f"That is {above} above {size_text(self.bound_bytes)}, which no order is below: {self.bound}")
        return [*found, *self.notes]

    @property
    def cells(self) -> list[list[str]]:
        """The table as text, its headings first."""
        found = [["policy", "peak", "above the bound", "longest queue", "planned in"]]
        for row in self.rows:
            longest = max(queue_lengths(self.graph, row.order), default=0)
            above = "0 %" if row.peak_bytes <= self.bound_bytes else percent_text(self.above(row))
            found.append([row.policy, size_text(row.peak_bytes), above, f"{longest:,}", f"{1e3 * row.seconds:.1f} ms"])
        return found

    @property
    def table(self) -> Table:
        """The rows as a table of rich, the best one bold."""
        return cells_table(self.cells, self.cells[0][1:], bold=[self.rows.index(self.best)])

    def __repr__(self) -> str:
        best = self.best
        return f"<OrderPlan of {len(self.graph):,} tasks: {best.policy}, {size_text(best.peak_bytes)}>"

    def figure(self, theme: GraphTheme = "auto") -> go.Figure:
        """The level over the tasks for each policy, the peaks marked. Needs plotly."""
        return drawn("levels as a figure", {row.policy: self.timeline(row.policy) for row in self.rows}, theme)


def plan_order(
    of: Outputs | Graph,
    policies: Iterable[AnyPolicy] | AnyPolicy = PORTFOLIO,
    *,
    footprints: Footprints | None = None,
    seconds: float = 0.0,
    progress: Callable[[SearchResult], object] | None = None,
    model: nn.Module | None = None,
) -> OrderPlan:
    """Predicts the peak of a backward under several policies, and says how far each is above what no order is below.

    No backward runs. Without footprints each distinct kernel may run once, see `ts.simulate`.
    `ts.backward(loss, policy=plan.policy)` runs the best, natively; `with ts.policy("auto"):` does all of it by itself.

    Args:
        of: the loss, or its graph.
        policies: names, `Policy` objects or callables, without one which decides while the backward runs.
        footprints: what the tasks allocate: those of a measured run, `ts.profile(...).footprints`; None: a dry run.
        seconds: how long to look for something better than all of them. For up to 1,000 tasks half of it goes to a
            search for the least peak there is ("optimal"), and the rest to moving tasks about ("search"). Interrupted,
            the best so far is taken.
        progress: is told now and then what has been found.
        model: names modules and parameters after this module, where a capture saw the forward call parts of it and
            never itself; several are one `nn.ModuleDict({"G": generator, "D": critic})`. None: after each outermost
            module that was called.

    Raises:
        ValueError: there is no policy, an unknown one, one twice, or one that has no order before it runs; `seconds` is
            no time; or the footprints are another graph's.
        PolicyError: no policy gave an order.
    """
    from .exact_search import exact
    from .local_search import search

    began = perf_counter()
    graph = graph_meant(of, model)
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function that is told what has been found")
    if footprints is not None:
        expect(footprints, Footprints, "footprints", "those of a measured run, ts.profile(...).footprints")
    if footprints is not None and (other := difference(graph, footprints.graph)) is not None:
        raise ValueError(f"the footprints are not this graph's: {other}")
    if footprints is not None:
        footprints = for_graph(footprints, graph)
    chosen = _chosen(policies)
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"seconds is how long to search, a number from 0 on, not {seconds!r}")
    problem = Problem(graph, footprints)
    bare = problem.footprints.graph  # a dry run, where there is one, counts for no policy, nor what all planners read
    rows: list[PlannedOrder] = []
    notes: list[str] = []
    with telling(None, "planning") as tell, collector_paused():
        tell("what no order is below")
        lowest = lower_bound(problem)
        for number, policy in enumerate(chosen, 1):
            tell(f"{policy_name(policy)} ({number} of {len(chosen)})")
            try:
                rows.append(planned_order(problem, policy))
            except PolicyError as error:  # what it set out to prove is not proven
                notes.append(f"{error}.")
    if not rows:
        raise PolicyError(notes[0])
    bound_bytes, why = lowest.nbytes, lowest.sentence
    best = min(rows, key=lambda row: row.peak_bytes)
    if best.peak_bytes > bound_bytes and any(policy_name(each).startswith("optimal") for each in chosen) and not notes:
        bound_bytes, why = best.peak_bytes, "that is proven by a search through all orders."
    ends = perf_counter() + seconds
    if seconds and len(problem.tasks) <= _EXACT_TASKS and best.peak_bytes > bound_bytes:
        with telling(None, "planning") as tell:
            tell("a search for the least peak there is")
            exactly = exact(problem, seconds=seconds / 2, interruptible=True)
        if exactly.bound_bytes > bound_bytes:
            bound_bytes, why = exactly.bound_bytes, f"{exactly}."
        if exactly.peak_bytes < best.peak_bytes or exactly.proven:
            name = "optimal" if exactly.proven else "exact"
            best = PlannedOrder(name, exactly.order, exactly.peak_bytes, exactly.seconds)
            rows.append(best)
    left = ends - perf_counter()
    if seconds and left > 0 and best.peak_bytes > bound_bytes:
        with telling(None if progress is None else silent, "planning") as tell:
            tell(f"a search of {left:.0f} s")
            found = search(problem, best.order, seconds=left, progress=progress)
        if found.peak_bytes < best.peak_bytes:
            rows.append(PlannedOrder("search", tuple(found.order), found.peak_bytes, found.seconds))
        else:
            notes.append(f"A search of {found.seconds:.1f} s found nothing better.")
    best = min(rows, key=lambda row: row.peak_bytes)
    estimates = problem.timeline(best.order).estimates
    if estimate := estimate_sentence(estimates):
        notes.append(estimate)
    if constants := constants_sentence(problem.footprints.constant_bytes):
        notes.append(constants)
    took = perf_counter() - began
    return OrderPlan(bare, problem.footprints, tuple(rows), bound_bytes, why, took, tuple(notes), estimates)


def _chosen(policies: Iterable[AnyPolicy] | AnyPolicy) -> list[Policy | Choice]:
    """The policies, each once. Raises what `plan_order` says."""
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    expect(policies, Iterable, "policies", 'a policy, or several, such as ("heap", "dfs")')
    chosen = [find_policy(policy) for policy in policies]
    if not chosen:
        raise ValueError("there is no policy to plan with")
    names = list(map(policy_name, chosen))
    if len(set(names)) < len(names):
        raise ValueError(f"there are two policies of one name: {', '.join(names)}")
    return chosen
