"""`th.plan`: what peak each order would have, which is least, and how far that is from what no order can be below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from ..inspector.collector import collector_paused
from ..inspector.graph import Graph, Outputs
from ..inspector.walk import graph as graph_of
from .footprint import Footprints
from .lower_bound import lower_bound
from .policies import AnyPolicy, Choice, Policy, bound, find_policy, is_dynamic, policy_name
from .problem import Problem
from .schedule import queue_lengths, schedule
from .simulate import difference
from .sizes import percent_text, size_text
from .timeline import Timeline

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table

    from .local_search import Found

PORTFOLIO = ("heap", "dfs", "bfs", "lpmf", "list", "postorder", "liu", "bfs_width")
"""The policies of which "auto" takes the best. PyTorch's own comes first: it wins where no other is better."""

_EXACT_TASKS = 200  # up to so many the least peak is looked for, half of the time that is given


@dataclass(frozen=True, slots=True, eq=False)
class PlannedOrder:
    """One order.

    Attributes:
        policy: what it is called.
        order: the ids of the tasks.
        peak_bytes: the highest level, predicted.
        seconds: what finding it took, the simulation included.
    """

    policy: str
    order: tuple[int, ...]
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, eq=False)
class OrderPlan:
    """Several orders of one backward, judged before it runs. In a notebook the table shows itself.

    Attributes:
        graph: the graph, without its nodes.
        footprints: what its tasks allocate, which all is predicted from.
        rows: as the policies were given; then what was searched for.
        bound_bytes: no legal order has a lower peak.
        bound: why.
        proven: whether the best order is one that no order beats.
        seconds: what all took, a dry run included.
    """

    graph: Graph
    footprints: Footprints
    rows: tuple[PlannedOrder, ...]
    bound_bytes: int
    bound: str
    seconds: float

    def __getitem__(self, policy: str) -> PlannedOrder:
        """The row of a policy.

        Raises:
            ValueError: it was not planned here.
        """
        for row in self.rows:
            if row.policy == policy:
                return row
        raise ValueError(f"{policy!r} was not planned here; planned were {', '.join(row.policy for row in self.rows)}")

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
        found = [f"{best.policy} needs least, {size_text(best.peak_bytes)}. Predicted; nothing was run."]
        if count > 1 and len({row.peak_bytes for row in self.rows}) == 1:
            found = [f"The order makes no difference to the peak, {size_text(best.peak_bytes)}. Nothing was run."]
        if self.proven:
            found.append(f"No order is better: {self.bound}")
        else:
            above = percent_text(self.above(best))
            found.append(f"That is {above} above {size_text(self.bound_bytes)}, which no order is below: {self.bound}")
        return found

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
        """The rows as a table of rich."""
        from rich.table import Table
        from rich.text import Text

        headings, *rows = self.cells
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "policy" else "right")
        for row, cells in zip(self.rows, rows, strict=True):
            table.add_row(Text(cells[0], "bold" if row is self.best else ""), *map(Text, cells[1:]))
        return table

    def __rich__(self) -> Table:
        return self.table

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.cells, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in self.cells]
        return "\n".join([*lines, "", *self.sentences])

    def __repr__(self) -> str:
        best = self.best
        return f"<OrderPlan of {len(self.graph):,} tasks: {best.policy}, {size_text(best.peak_bytes)}>"

    def _repr_html_(self) -> str:
        from ..widgets.report_html import table_html

        return table_html(self)

    def figure(self, theme: Literal["light", "dark"] = "light") -> go.Figure:
        """The level over the tasks for each policy, the peaks marked. Needs plotly."""
        from ..widgets.memory_figures import memory_figure

        return memory_figure({row.policy: self.timeline(row.policy) for row in self.rows}, theme)


def plan(
    of: Outputs | Graph,
    policies: Iterable[AnyPolicy] | AnyPolicy = PORTFOLIO,
    *,
    footprints: Footprints | None = None,
    seconds: float = 0.0,
    progress: Callable[[Found], object] | None = None,
) -> OrderPlan:
    """Predicts the peak of a backward under several policies, and says how far each is above what no order is below.

    Nothing runs. `th.backward(loss, policy=plan.policy)` runs the best, natively; `with th.policy("auto"):` does all of
    it by itself.

    Args:
        of: the loss, or its graph.
        policies: names, `Policy` objects or callables, without one which decides while the backward runs.
        footprints: what the tasks allocate: those of a measured run, `th.profile(...).footprints`; None: a dry run.
        seconds: how long to look for something better than all of them. For up to 200 tasks half of it goes to a search
            for the least peak there is ("optimal"), and the rest to moving tasks about ("search"). Interrupted, the
            best so far is taken.
        progress: is told now and then what has been found.

    Raises:
        ValueError: there is no policy, an unknown one, or one that has no order before it runs; or the footprints are
            another graph's.
    """
    from .exact import optimal
    from .local_search import search

    began = perf_counter()
    graph = of if isinstance(of, Graph) else graph_of(of)
    if footprints is not None and (other := difference(graph, footprints.graph)) is not None:
        raise ValueError(f"the footprints are not this graph's: {other}")
    if isinstance(policies, str | Policy) or callable(policies):
        policies = (policies,)
    chosen = [find_policy(policy) for policy in policies]
    if not chosen:
        raise ValueError("there is no policy to plan with")
    problem = Problem(graph, footprints)
    bare = problem.footprints.graph  # a dry run, where there is one, counts for no policy
    with collector_paused():
        rows = [planned_order(problem, policy) for policy in chosen]
        bound = lower_bound(problem)
    bound_bytes, why = bound.nbytes, bound.sentence
    best = min(rows, key=lambda row: row.peak_bytes)
    ends = perf_counter() + seconds
    if seconds and len(problem.tasks) <= _EXACT_TASKS and best.peak_bytes > bound_bytes:
        exact = optimal(problem, seconds=seconds / 2)
        if exact.bound_bytes > bound_bytes:
            bound_bytes, why = exact.bound_bytes, f"{exact}."
        if exact.peak_bytes < best.peak_bytes or exact.proven:
            best = PlannedOrder("optimal" if exact.proven else "exact", exact.order, exact.peak_bytes, exact.seconds)
            rows.append(best)
    left = ends - perf_counter()
    if left > 0 and best.peak_bytes > bound_bytes:
        found = search(problem, best.order, seconds=left, progress=progress)
        if found.peak_bytes < best.peak_bytes:
            rows.append(PlannedOrder("search", tuple(found.order), found.peak_bytes, found.seconds))
    return OrderPlan(bare, problem.footprints, tuple(rows), bound_bytes, why, perf_counter() - began)


def planned_order(problem: Problem, policy: Policy | Choice) -> PlannedOrder:
    """What a policy makes of a problem.

    Raises:
        ValueError: it decides while the backward runs.
    """
    if is_dynamic(policy):
        raise ValueError(f"policy {policy_name(policy)} decides while the backward runs, so it has no order yet")
    began = perf_counter()
    order = schedule(problem.graph, bound(policy, problem), problem.needed)  # all read the memory of one problem
    return PlannedOrder(policy_name(policy), tuple(order), problem.peak_bytes(order), perf_counter() - began)
