"""The policy "auto": of the portfolio the order with the least predicted peak, planned once for each kind of graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import local

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ...inspector.capturing.alike import forget_graphs
from ...inspector.graph.collector import collector_paused
from ...inspector.graph.latest import Latest
from ...inspector.torch_internals.nodes import leaf_of, output_metadata
from ...inspector.torch_internals.saved import is_packed
from ...inspector.torch_internals.sequence_numbers import sequence_nr
from ..queue.kept_turns import forget_turns
from ..queue.policy import HEAP, Policy, following
from ..tasks.hook_watch import no_hooks
from ..words.warn import warn
from .kept_orders import forget_orders
from .kept_plans import fingerprint, forget_kept
from .lower_bound import lower_bound
from .planning import PlannedOrder, planned_order
from .problem import Problem

_MANY = 2_000  # tasks; larger graphs get no lower bound, which takes as long as the planners
_WORTH_IT = 0.01  # a smaller gain is no reason to leave PyTorch's own order
_ESTIMATE = "what decides is an estimate"
_LOOKED_AT = 256  # nodes that make the shape of a graph which is not walked

_plans: Latest[_Taken] = Latest()
_left_alone: Latest[None] = Latest()  # the looks of backwards for which that is the plan
_ordered: Latest[None] = Latest()  # those of backwards for which another one is


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


class _Look:
    """One backward, as far as it is seen without reading its graph."""

    def __init__(self, seen: Hashable) -> None:
        self.seen = seen
        self.own: bool | None = None  # whether its plan is PyTorch's own order; None: there is none


class _Thread(local):
    """What the backwards of one thread have left."""

    number = 0  # how many nodes the thread had made when its last backward ended

    def __init__(self) -> None:
        self.looks: list[_Look] = []  # of the backwards under way, the innermost last


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
    found = _plans.of(key, lambda: _best(problem, portfolio))
    if _thread.looks and _thread.looks[-1].own is None:
        _thread.looks[-1].own = found.order is None
    return found


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


_thread = _Thread()


def forget_plans() -> None:
    """From here on each graph is read and planned anew."""
    forget_graphs()
    forget_kept()
    forget_orders()
    forget_turns()
    _plans.clear()
    _left_alone.clear()
    _ordered.clear()


@contextmanager
def looked_at(tensors: Sequence[Tensor | GradientEdge], limited: bool) -> Iterator[bool]:
    """Around a backward: whether it may run as it is, by its looks, without its graph being read.

    Reading the graph takes longer than many a small backward may be slowed down. So it is looked at only: the names of
    its first nodes, what gradients they take, whether hooks packed what they saved, which of the leaves among them have
    a .grad, and how many nodes were made since the last backward of this thread ended. Where graphs of the same looks
    were planned, and PyTorch's own order was the best of each, this one is left alone. Should it be another graph after
    all, it runs in PyTorch's order, as it would without us.

    Args:
        tensors: the roots.
        limited: there are `inputs=`.
    """
    look = _Look((limited, sequence_nr() - _thread.number, tuple(_first_nodes(tensors))))
    alone = look.seen in _left_alone and look.seen not in _ordered
    _thread.looks.append(look)
    try:
        yield alone
    finally:
        _thread.looks.pop()
        _thread.number = sequence_nr()
        if look.own is not None:
            (_left_alone if look.own else _ordered).of(look.seen, lambda: None)


def _first_nodes(tensors: Sequence[Tensor | GradientEdge]) -> Iterator[Hashable]:
    """Yield the looks of some nodes from the roots on: the name, whether its saved tensors are packed, and its inputs'
    metadata; for an AccumulateGrad the leaf's shape and whether it has a .grad."""
    nodes: deque[Node] = deque()
    for tensor in tensors:
        node = tensor.node if isinstance(tensor, GradientEdge) else tensor.grad_fn
        if node is not None:
            nodes.append(node)
    seen: set[Node] = set()
    while nodes and len(seen) < _LOOKED_AT:
        node = nodes.popleft()
        if node not in seen:
            seen.add(node)
            leaf = leaf_of(node) if node.name().endswith("AccumulateGrad") else None
            if leaf is None:
                yield node.name(), is_packed(node), *output_metadata(node)
            else:
                yield leaf.shape, leaf.grad is None
            nodes.extend(following for following, _ in node.next_functions if following is not None)
