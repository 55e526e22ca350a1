"""The policy "auto": the portfolio's order with the lowest predicted peak, planned once for each kind of graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.source_lines import warn
from ..execution.find_hooks import no_hooks
from ..schedule.policy import HEAP, Policy, following
from .lower_bound import lower_bound
from .order_cache import CACHED_ORDERS, fingerprint
from .policy_orders import planned_order
from .scheduling_problem import Problem

_MANY = 2_000  # tasks; larger graphs get no lower bound, which takes as long as the planners
_WORTH_IT = 0.01  # a smaller gain is no reason to leave PyTorch's own order
_ESTIMATE = "the prediction is an estimate"


@dataclass(frozen=True, slots=True)
class _Adopted:
    """The policy whose order "auto" takes for a kind of graph.

    Attributes:
        policy: its name.
        order: its order; None for PyTorch's own.
        why: the reason for keeping PyTorch's own order although another might have a lower peak.
    """

    policy: str
    order: tuple[int, ...] | None = None
    why: str = ""

    def __len__(self) -> int:
        return len(self.order or ())


def auto_order(problem: Problem, ran: Sequence[int], portfolio: Sequence[Policy]) -> list[int]:
    """Return the portfolio's order with the lowest predicted peak, or PyTorch's own unless another saves at least 1 %.

    PyTorch's own order is also kept if the comparison rests on an estimate: if memory that outlives a task is unknown
    (`Footprints.unsure`; after a measured run, any limit), or if there are hooks. A kernel's workspace does not matter,
    because the kernel runs in every order.

    A training loop plans once (`order_cache.fingerprint`).
    """
    return _ordered_by(_adopted(problem, portfolio), problem, ran)


def auto_choice(problem: Problem, ran: Sequence[int], auto: Policy, portfolio: Sequence[Policy]) -> Policy:
    """Return the policy "auto" for this graph, with the name of the policy whose order it took."""
    adopted = _adopted(problem, portfolio)
    own = adopted.order is None and not ran
    chosen = HEAP if own else following(auto, _ordered_by(adopted, problem, ran))
    title = f"took {adopted.policy}: {next(each.title for each in portfolio if each.name == adopted.policy)}"
    return replace(chosen, name=auto.name, title=title, took=adopted.policy, note=adopted.why)


def _ordered_by(adopted: _Adopted, problem: Problem, ran: Sequence[int]) -> list[int]:
    order: Sequence[int] = problem.heap_order if adopted.order is None else adopted.order
    gone = set(ran)
    return [*ran, *(task for task in order if task not in gone)]


def _adopted(problem: Problem, portfolio: Sequence[Policy]) -> _Adopted:
    basis = problem.footprints.basis if problem.has_footprints else "dry run"
    key = fingerprint(problem), basis, no_hooks(look=True)
    adopted: _Adopted = CACHED_ORDERS.of(key, lambda: _best(problem, portfolio))
    return adopted


def _unsure(problem: Problem) -> str:
    """Return why this prediction cannot decide between orders; "" if it can."""
    footprints = problem.footprints
    unsure = footprints.unsure if footprints.basis == "dry run" else footprints.limits
    if unsure:
        return unsure[0]
    if footprints.basis == "dry run" and not no_hooks(look=True):
        return "this backward may have hooks, and the tensors they hold are not known"
    return ""


def _best(problem: Problem, portfolio: Sequence[Policy]) -> _Adopted:
    """Predict the peaks of the portfolio and choose."""
    with collector_paused():
        try:
            if not _has_choice(problem):
                return _Adopted("heap")
            if unsure := _unsure(problem):
                return _Adopted("heap", why=f"{_ESTIMATE}: {unsure}")
            heap, *others = portfolio
            best = own = planned_order(problem, heap)
            bound = 0 if len(problem.tasks) > _MANY else lower_bound(problem).nbytes
            for policy in others:
                if best.peak_bytes <= bound:
                    break
                row = planned_order(problem, policy)
                lower = row.peak_bytes < min(best.peak_bytes, own.peak_bytes * (1 - _WORTH_IT))
                # In another order, a different task may trigger the recomputation of a checkpointed region.
                if not lower or problem.footprints.other_openers(row.order):
                    continue
                # It must be lower even if each gradient in another layout is copied and kept.
                if row.peak_bytes + problem.timeline(row.order).unsure_bytes < own.peak_bytes:
                    best = row
        except Exception as error:  # a node's code may raise anything on fake tensors; training continues
            warn(f'policy "auto" keeps PyTorch\'s own order for this graph: {error}')
            return _Adopted("heap", why=f"no order could be planned: {error}")
    return _Adopted("heap") if best is own else _Adopted(best.policy, best.order)


def _has_choice(problem: Problem) -> bool:
    """Return whether the problem has more than one legal order."""
    waits, nexts = list(problem.waits), problem.nexts
    ready = problem.start()
    while len(ready) == 1:
        arrived = nexts[ready.pop()]
        for task in arrived:
            waits[task] -= 1
        ready = [task for task in arrived if not waits[task]]
    return bool(ready)
