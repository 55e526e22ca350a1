"""The policy "auto": of the portfolio the order with the least predicted peak, planned once for each kind of graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...inspector.capture.graph_cache import forget_graphs
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.lru_cache import Latest
from ...inspector.graph.source_lines import warn
from ..execution.find_hooks import no_hooks
from ..schedule.policy import HEAP, Policy, following
from .lower_bound import lower_bound
from .order_cache import fingerprint, forget_kept
from .policy_orders import PlannedOrder, planned_order
from .scheduling_problem import Problem

_MANY = 2_000  # tasks; larger graphs get no lower bound, which takes as long as the planners
_WORTH_IT = 0.01  # a smaller gain is no reason to leave PyTorch's own order
_ESTIMATE = "what decides is an estimate"

_plans: Latest[_Taken] = Latest()


@dataclass(frozen=True, slots=True)
class _Taken:
    """Whose order is taken.

    Attributes:
        policy: its name.
        order: None: PyTorch's own.
        why: why PyTorch's own is kept where another might have a lower peak.
    """

    policy: str
    order: tuple[int, ...] | None = None
    why: str = ""


def auto_order(problem: Problem, ran: Sequence[int], portfolio: Sequence[Policy]) -> list[int]:
    """The order with the least predicted peak of the portfolio; PyTorch's own unless another saves 1 % or more.

    PyTorch's own is also kept where the prediction is an estimate in what decides: where memory that outlives a task is
    not known (`Footprints.unsure`; after a measured run any limit), or where something has hooks. What a kernel takes
    for itself is no reason: it runs in each order.

    A training loop plans once (`kept_plans.fingerprint`).
    """
    return _ordered_by(_taken(problem, portfolio), problem, ran)


def auto_choice(problem: Problem, ran: Sequence[int], auto: Policy, portfolio: Sequence[Policy]) -> Policy:
    """The policy "auto" in this graph: it says whose order it took."""
    taken = _taken(problem, portfolio)
    own = taken.order is None and not ran
    chosen = HEAP if own else following(auto, _ordered_by(taken, problem, ran))
    title = f"took {taken.policy}: {next(each.title for each in portfolio if each.name == taken.policy)}"
    return replace(chosen, name=auto.name, title=title, took=taken.policy, note=taken.why)


def _ordered_by(taken: _Taken, problem: Problem, ran: Sequence[int]) -> list[int]:
    order: Sequence[int] = problem.heap_order if taken.order is None else taken.order
    gone = set(ran)
    return [*ran, *(task for task in order if task not in gone)]


def _taken(problem: Problem, portfolio: Sequence[Policy]) -> _Taken:
    basis = problem.footprints.basis if problem.given else "dry run"
    key = fingerprint(problem), basis, no_hooks(look=True)
    return _plans.of(key, lambda: _best(problem, portfolio))


def _unsure(problem: Problem) -> str:
    """Why the order can't be decided on by this prediction; "" if it can."""
    footprints = problem.footprints
    unsure = footprints.unsure if footprints.basis == "dry run" else footprints.limits
    if unsure:
        return unsure[0]
    if footprints.basis == "dry run" and not no_hooks(look=True):
        return "there may be hooks in this backward, and what these hold or let go of is not known"
    return ""


def _best(problem: Problem, portfolio: Sequence[Policy]) -> _Taken:
    """What to take."""
    with collector_paused():
        try:
            if not _has_choice(problem):
                return _Taken("heap")
            if unsure := _unsure(problem):
                return _Taken("heap", why=f"{_ESTIMATE}: {unsure}")
            heap, *others = portfolio
            best = own = planned_order(problem, heap)
            bound = 0 if len(problem.tasks) > _MANY else lower_bound(problem).nbytes
            for policy in others:
                if best.peak_bytes <= bound:
                    break
                row = planned_order(problem, policy)
                if row.peak_bytes < min(best.peak_bytes, own.peak_bytes * (1 - _WORTH_IT)) and _is_sure(
                    problem, row, own
                ):
                    best = row
        except Exception as error:  # whatever a node's own code raises on fake tensors: training goes on
            warn(f'policy "auto" keeps PyTorch\'s own order for this graph: {error}')
            return _Taken("heap", why=f"no order could be planned: {error}")
    return _Taken("heap") if best is own else _Taken(best.policy, best.order)


def _has_choice(problem: Problem) -> bool:
    """Whether there is more than one order."""
    waits, nexts = list(problem.waits), problem.nexts
    ready = problem.start()
    while len(ready) == 1:
        arrived = nexts[ready.pop()]
        for task in arrived:
            waits[task] -= 1
        ready = [task for task in arrived if not waits[task]]
    return bool(ready)


def _is_sure(problem: Problem, row: PlannedOrder, own: PlannedOrder) -> bool:
    """Whether the peak is lower even if each gradient that comes in another layout is copied for good.

    It is not where another task has a checkpointed region computed again than the one that was seen to.
    """
    if problem.footprints.other_openers(row.order):
        return False
    return row.peak_bytes + problem.timeline(row.order).unsure_bytes < own.peak_bytes


def forget_plans() -> None:
    """From here on each graph is read and planned anew."""
    forget_graphs()
    forget_kept()
    _plans.clear()
