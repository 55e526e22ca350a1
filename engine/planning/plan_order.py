"""`ts.plan_order`: the predicted peak of each order, the lowest of them, and a lower bound."""

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
from ..memory.task_memory import Footprints, difference, for_graph
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


_EXACT_TASKS = 1_000  # up to this number, half of the search time is for the exact search


@dataclass(frozen=True, eq=False)
class OrderPlan(ShownAsTable):
    """The predicted peaks of several orders of a backward. In a notebook it displays a table.

    Attributes:
        graph: the graph; it has its nodes as long as the loss exists.
        footprints: the allocations of its tasks, on which all predictions are based.
        rows: one row for each policy, in the order passed, then the results of searches.
        bound_bytes: a peak that no legal order is below.
        bound: the reason for the bound, as a sentence.
        proven: whether no order has a lower predicted peak than the best.
        seconds: the time for planning, including a dry run.
        notes: searches without a result, and reasons why the prediction is an estimate, as sentences.
        estimates: reasons why the prediction is an estimate, as in `Timeline.estimates`.
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
            ValueError: the policy was not planned here.
        """
        return row_called(policy, ((row.policy, row) for row in self.rows), "policy")

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
        """True if no order has a lower predicted peak than the best."""
        return self.best.peak_bytes <= self.bound_bytes

    @property
    def policy(self) -> Policy:
        """The best order as a policy, for this graph or that of another run of the same forward."""
        best = self.best

        def planned(problem: Problem, ran: Sequence[int]) -> list[int]:
            if (other := difference(problem.graph, self.graph)) is not None:
                raise ValueError(f"this order was planned for another graph: {other}; plan again")
            gone, runs = set(ran), set(problem.tasks)
            return [*ran, *(task for task in best.order if task in runs and task not in gone)]

        return Policy(f"planned {best.policy}", f"an order found by {best.policy}", plan=planned)

    def above(self, row: PlannedOrder) -> float:
        """Return how far a row's peak is above the bound, as a share: 0.05 for 5 %."""
        return row.peak_bytes / self.bound_bytes - 1 if self.bound_bytes else 0.0

    def timeline(self, policy: str) -> Timeline:
        """Simulate the memory under a policy."""
        return Problem(self.footprints.graph, self.footprints).timeline(self[policy].order)

    @property
    def sentences(self) -> list[str]:
        """The result as sentences."""
        best, count = self.best, len(self.rows)
        peak = bounded_size(best.peak_bytes, self.estimates)
        equals = [row.policy for row in self.rows if row.peak_bytes == best.peak_bytes]
        if count > 1 and len(equals) == count:
            found = [f"All {count} orders have the same peak, {peak}. Predicted; nothing was run."]
        else:
            least = f"{joined(equals)} {'need' if len(equals) > 1 else 'needs'} least"
            found = [f"{least}, {peak}. Predicted; nothing was run."]
        if self.proven:
            found.append(f"No order can be better: {self.bound}")
        else:
            above = percent_text(self.above(best))
            found.append(f"That is {above} above the lower bound of {size_text(self.bound_bytes)}: {self.bound}")
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
    """Predict the peak of a backward under several policies, and a lower bound for all orders.

    No backward runs. Without footprints each distinct kernel may run once, see `ts.simulate`. Above 20,000 tasks the
    bound considers only some of the tasks, and may be lower than it could be.
    `ts.backward(loss, policy=plan.policy)` runs the best order on PyTorch's engine; `with ts.policy("auto"):` plans and
    runs automatically.

    Args:
        of: the loss, or its graph.
        policies: names, `Policy` objects or callables; policies that decide while the backward runs are refused.
        footprints: the allocations of the tasks, from a measured run (`ts.profile(...).footprints`); None: a dry run.
        seconds: the time for searching a better order. Up to 1,000 tasks, half of it is for the exact search
            ("optimal"), the rest for local search ("search"). Ctrl-C ends the search with the best order so far.
        progress: called now and then with the result so far.
        model: names modules and parameters by their path in this module, for a captured forward that calls parts of the
            model and never the model itself; use `nn.ModuleDict({"G": generator, "D": critic})` for several models.
            None: paths start at each outermost module that was called.

    Raises:
        ValueError: `policies` is empty, or contains an unknown policy, a policy twice, or one without an order before
            it runs; `seconds` is not a time; or the footprints belong to another graph.
        PolicyError: no policy returned an order.
    """
    from .exact_search import exact
    from .local_search import search

    began = perf_counter()
    graph = graph_meant(of, model)
    if progress is not None:
        expect_callable(progress, 1, "progress", "a function that is called with the result so far")
    if footprints is not None:
        expect(footprints, Footprints, "footprints", "those of a measured run, ts.profile(...).footprints")
    if footprints is not None and (other := difference(graph, footprints.graph)) is not None:
        raise ValueError(f"the footprints belong to another graph: {other}")
    if footprints is not None:
        footprints = for_graph(footprints, graph)
    chosen = _chosen(policies)
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"seconds must be the time of the search, 0 or more, got {seconds!r}")
    problem = Problem(graph, footprints)
    shared_graph = problem.footprints.graph  # read now, so that no policy's time includes the dry run
    rows: list[PlannedOrder] = []
    notes: list[str] = []
    with telling(None, "planning") as tell, collector_paused():
        tell("the lower bound")
        lowest = lower_bound(problem)
        for number, policy in enumerate(chosen, 1):
            tell(f"{policy_name(policy)} ({number} of {len(chosen)})")
            try:
                rows.append(planned_order(problem, policy))
            except PolicyError as error:  # the policy could not prove its result
                notes.append(f"{error}.")
    if not rows:
        raise PolicyError(notes[0])
    bound_bytes, why = lowest.nbytes, lowest.sentence
    best = min(rows, key=lambda row: row.peak_bytes)
    if best.peak_bytes > bound_bytes and any(policy_name(each).startswith("optimal") for each in chosen) and not notes:
        bound_bytes, why = best.peak_bytes, "a search through all orders proves it."
    ends = perf_counter() + seconds
    if seconds and len(problem.tasks) <= _EXACT_TASKS and best.peak_bytes > bound_bytes:
        with telling(None, "planning") as tell:
            tell("the exact search")
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
            tell(f"a local search of {left:.0f} s")
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
    return OrderPlan(shared_graph, problem.footprints, tuple(rows), bound_bytes, why, took, tuple(notes), estimates)


def _chosen(policies: Iterable[AnyPolicy] | AnyPolicy) -> list[Policy | Choice]:
    """Return the policies after checking them. Raises the errors of `plan_order`."""
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    expect(policies, Iterable, "policies", 'a policy, or several, such as ("heap", "dfs")')
    chosen = [find_policy(policy) for policy in policies]
    if not chosen:
        raise ValueError("policies is empty; expected at least one policy")
    names = list(map(policy_name, chosen))
    if len(set(names)) < len(names):
        raise ValueError(f"policies has a name twice: {', '.join(names)}")
    return chosen
