"""The policy "optimal": an order of the least peak there is, by whichever search proves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from ..queue.ready_queue import PolicyError
from .exact import Exact, exact
from .problem import Problem


def optimal(problem: Problem, ran: Sequence[int] = (), *, seconds: float = 10.0, interruptible: bool = False) -> Exact:
    """The best order and the best bound of `exact` and, where it leaves a gap, of `cp_sat` in a quarter of the time.

    That needs the package ortools, and is not tried without it, nor where there are too many tasks for it.
    """
    from .cp_sat import MOST_TASKS, cp_sat, has_ortools

    began = perf_counter()
    second = has_ortools() and len(problem.tasks) <= MOST_TASKS
    found = exact(problem, ran, seconds=0.75 * seconds if second else seconds, interruptible=interruptible)
    left = seconds + began - perf_counter()
    if found.proven or not second or left < 0.2 * seconds:  # interrupted, or it took long to begin
        return found
    other = cp_sat(problem, ran, seconds=left, hint=found.order)
    best = min(found, other, key=lambda each: each.peak_bytes)
    bound = min(max(found.bound_bytes, other.bound_bytes), best.peak_bytes)
    return replace(
        best,
        bound_bytes=bound,
        proven=bound == best.peak_bytes,
        states=found.states,
        seconds=perf_counter() - began,
    )


def optimal_order(problem: Problem, ran: Sequence[int], seconds: float) -> list[int]:
    """The planner of the policy "optimal".

    Raises:
        PolicyError: it is not proven in this time that no order is better.
    """
    found = optimal(problem, ran, seconds=seconds)
    if not found.proven:
        raise PolicyError(
            f"policy optimal can't tell the least peak of {len(problem.tasks):,} tasks in {seconds:g} s: {found}; "
            f'give it more time, as in "optimal({10 * seconds:g})", or take "search({seconds:g})", which needs no proof'
        )
    return list(found.order)
