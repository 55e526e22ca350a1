"""The policy "auto": of the portfolio the order with the least predicted peak, planned once for each kind of graph."""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, local

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ..inspector.collector import collector_paused
from ..inspector.torch_internals import sequence_nr
from .lower_bound import lower_bound
from .plan import PORTFOLIO, planned_order
from .policies import find_policy
from .problem import Problem

_MANY = 2_000  # tasks, of more of which only the quickest planners are asked, and no bound: to plan them takes a second
_QUICK = ("heap", "dfs", "bfs", "lpmf", "list")
_WORTH_IT = 0.01  # a smaller gain is no reason to leave PyTorch's own order
_MOST_KEPT = 64  # plans
_LOOKED_AT = 256  # nodes that make the shape of a graph which is not walked

_lock = Lock()
_plans: OrderedDict[int, tuple[int, ...] | None] = OrderedDict()  # None: PyTorch's own order
_left_alone: OrderedDict[int, None] = OrderedDict()  # the looks of backwards for which that is the plan


class _Thread(local):
    """What the backwards of one thread have left."""

    number = 0  # how many nodes the thread had made when its last backward ended
    own = False  # whether the last plan was PyTorch's own order


def auto_order(problem: Problem, ran: Sequence[int] = ()) -> list[int]:
    """The order with the least predicted peak of the portfolio; PyTorch's own unless another saves 1 % or more.

    For more than 2,000 tasks it is that of HEAP, DFS, BFS, lpmf and list, which take less time to plan.

    It is kept by what the graph is: the names of its nodes, the shapes, dtypes and devices of their gradients, its
    edges and roots, which tasks run, and which leaves have a .grad already. A training loop plans once.
    """
    known = fingerprint(problem)
    with _lock:
        found = _plans.get(known, ())
    if found == ():
        found = _best(problem)
        with _lock:
            _plans[known] = found
            while len(_plans) > _MOST_KEPT:
                _plans.popitem(last=False)
    _thread.own = found is None
    order: Sequence[int] = problem.heap_order if found is None else found
    gone = set(ran)
    return [*ran, *(task for task in order if task not in gone)]


_thread = _Thread()


def forget_plans() -> None:
    """From here on all is planned anew."""
    with _lock:
        _plans.clear()
        _left_alone.clear()


@contextmanager
def looked_at(tensors: Sequence[Tensor | GradientEdge], limited: bool) -> Iterator[bool]:
    """Around a backward: whether it may run as it is, by its looks, without its graph being read.

    Reading the graph takes longer than many a small backward may be slowed down. So it is looked at only: the names of
    its first nodes, and how many nodes were made since the last backward of this thread ended. Where a graph of the
    same looks was planned, and PyTorch's own order was the best, this one is left alone. Should it be another graph
    after all, it runs in PyTorch's order, as it would without us.

    Args:
        tensors: the roots.
        limited: there are `inputs=`.
    """
    looks = hash((limited, sequence_nr() - _thread.number, tuple(_first_names(tensors))))
    with _lock:
        alone = looks in _left_alone
    _thread.own = alone
    try:
        yield alone
    finally:
        _thread.number = sequence_nr()
        if _thread.own and not alone:
            with _lock:
                _left_alone[looks] = None
                while len(_left_alone) > _MOST_KEPT:
                    _left_alone.popitem(last=False)


def _first_names(tensors: Sequence[Tensor | GradientEdge]) -> Iterator[str]:
    """The names of some nodes from the roots on, with the shapes of the roots."""
    nodes: deque[Node] = deque()
    for tensor in tensors:
        node = tensor.node if isinstance(tensor, GradientEdge) else tensor.grad_fn
        if node is not None:
            nodes.append(node)
        if isinstance(tensor, Tensor):
            yield f"{tuple(tensor.shape)} {tensor.dtype}"
    seen: set[Node] = set()
    while nodes and len(seen) < _LOOKED_AT:
        node = nodes.popleft()
        if node not in seen:
            seen.add(node)
            yield node.name()
            nodes.extend(following for following, _ in node.next_functions if following is not None)


def _best(problem: Problem) -> tuple[int, ...] | None:
    """The best order; None if that is PyTorch's own."""
    with collector_paused():
        try:
            many = len(problem.tasks) > _MANY
            heap, *others = (find_policy(name) for name in (_QUICK if many else PORTFOLIO))
            best = own = planned_order(problem, heap)
            bound = 0 if many else lower_bound(problem).nbytes
            for policy in others:
                if best.peak_bytes <= bound:
                    break
                row = planned_order(problem, policy)
                if row.peak_bytes < min(best.peak_bytes, own.peak_bytes * (1 - _WORTH_IT)):
                    best = row
        except Exception as error:  # whatever a node's own code raises on fake tensors: training goes on
            warnings.warn(f'policy "auto" keeps PyTorch\'s own order for this graph: {error}', stacklevel=2)
            return None
    return None if best is own else best.order


def fingerprint(problem: Problem) -> int:
    """What decides on the plan, as one number."""
    graph = problem.graph
    return hash(
        (
            tuple([(task.name, task.inputs) for task in graph.tasks]),
            graph.edges,
            graph.roots,
            problem.needed,
            tuple([leaf.grad is None for leaf in graph.leaves.values()]),
        )
    )
