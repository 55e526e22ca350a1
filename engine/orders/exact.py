"""The least peak of memory that any order of a backward has, and an order that has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from ...inspector.graph.collector import collector_paused
from ..queue.chosen_order import allowed, chosen_order
from ..queue.policy import BFS, DFS, HEAP
from ..queue.ready_queue import PolicyError
from ..words.sizes import percent_text, size_text
from . import planners
from .limit_search import LimitSearch, StoppedError
from .lower_bound import lower_bound
from .problem import Problem

MOST_STATES = 1_000_000  # each takes up to a kilobyte
_FIRST_LOOK = 256  # states after which a limit is left for another, at first
_FINE = 1024  # limits closer than this part of the peak are not told apart until nothing else is left to ask


@dataclass(frozen=True, slots=True)
class Exact:
    """The best order that was found, and what was proven.

    Attributes:
        order: ids of tasks.
        peak_bytes: its peak, as `simulate` predicts it.
        bound_bytes: no legal order has a lower peak than this.
        proven: whether that is the same number, so that no order is better.
        states: how many sets of tasks that may have run were looked at.
        seconds: how long it took.
    """

    order: tuple[int, ...]
    peak_bytes: int
    bound_bytes: int
    proven: bool
    states: int
    seconds: float

    def __str__(self) -> str:
        effort = f"found in {self.seconds:.1f} s" + (f" and {self.states:,} states" if self.states else "")
        if self.proven:
            return f"no order has a lower peak than {size_text(self.peak_bytes)}, {effort}"
        above = percent_text(self.peak_bytes / self.bound_bytes - 1)
        peak, bound = size_text(self.peak_bytes), size_text(self.bound_bytes)
        return f"an order has a peak of {peak}, {above} above the {bound} which no order is below, {effort}"


def exact(
    problem: Problem,
    ran: Sequence[int] = (),
    *,
    seconds: float = 10.0,
    states: int = MOST_STATES,
    interruptible: bool = False,
) -> Exact:
    """Looks for an order with the least peak there is, and proves that none is below it.

    It goes through the sets of tasks that may have run, as SERENITY does (Ahn et al., Ordering Chaos: Memory-Aware
    Scheduling of Irregularly Wired Neural Networks for Edge Devices, MLSys 2020): however such a set came about, only
    what is then in memory matters. Whether an order stays within a limit is asked for one limit after the other,
    between the bound and the best order known. Memory is that of `simulate`, and no model of it.

    Most steps of a backward need not be weighed against each other (see `LimitSearch`), so that many graphs of hundreds
    of tasks are solved within a second. Where branches that differ have to be open at once it takes exponential time.

    Args:
        problem: the backward.
        ran: the tasks with which the order starts, whatever comes of it: those that ran already.
        seconds: after which it stops, with the best order so far and what is proven by then.
        states: after how many it stops.
        interruptible: an interrupt stops it in the same way; otherwise it is raised as ever.
    """
    began = perf_counter()
    with collector_paused():
        hunt = _Hunt(problem, ran)
        try:
            hunt.run(began + seconds, states)
        except StoppedError:
            pass
        except KeyboardInterrupt:
            if not interruptible:
                raise
    proven = hunt.bound == hunt.peak
    return Exact(tuple(hunt.order), hunt.peak, hunt.bound, proven, hunt.states, perf_counter() - began)


def optimal_order(problem: Problem, ran: Sequence[int], seconds: float) -> list[int]:
    """Plan the order of the policy "optimal".

    Raises:
        PolicyError: it is not proven in this time that no order is better.
    """
    found = exact(problem, ran, seconds=seconds)
    if not found.proven:
        raise PolicyError(
            f"policy optimal can't tell the least peak of {len(problem.tasks):,} tasks in {seconds:g} s: {found}; "
            f'give it more time, as in "optimal({10 * seconds:g})", or take "search({seconds:g})", which needs no proof'
        )
    return list(found.order)


class _Hunt:
    """Asks whether an order stays within a limit, for one limit after the other."""

    def __init__(self, problem: Problem, ran: Sequence[int]) -> None:
        self._problem = problem
        self._ran = ran
        self.states = 0
        orders = [
            chosen_order(problem.graph, policy, allowed(problem.graph, problem.needed), ran)
            for policy in (HEAP, BFS, DFS)
        ]
        orders += [plan(problem, ran) for plan in (planners.lpmf, planners.postorder, planners.liu)]
        self.peak, number = min((problem.peak_bytes(order), number) for number, order in enumerate(orders))
        self.order = orders[number]
        self.bound = min(lower_bound(problem).nbytes, self.peak)

    def run(self, until: float, most: int) -> None:
        """Goes on until bound and peak are equal.

        Raises:
            StoppedError: the time is up before, or there are more states.
        """
        if self.bound == self.peak:
            return
        search = LimitSearch(self._problem)
        search.until, search.most = until, most
        self.bound = min(max(self.bound, search.begin(self._ran, self.order)), self.peak)
        look = _FIRST_LOOK
        while self.bound < self.peak:
            undecided = self.peak
            limit = self.peak - 1
            while undecided - self.bound > (self.peak // _FINE if undecided < self.peak else 0):
                answer = search.within(limit, look)
                self.states = search.states
                if answer is None:
                    undecided = limit
                elif isinstance(answer, int):
                    self.bound = min(answer, self.peak)
                else:
                    self.order = [*self._ran, *answer]
                    undecided = self.peak = self._problem.peak_bytes(self.order)
                limit = (self.bound + undecided) // 2
            look *= 4
