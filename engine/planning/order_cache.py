"""Caches of orders and plans for graphs that look alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch.autograd.graph import Node

from ...inspector.graph.graph import Graph
from ...inspector.graph.lru_cache import Latest, LongKey
from ...inspector.torch_private.hooks import hooks_registered
from ...inspector.torch_private.nodes import have_grad, input_metadata_of_each, types_of
from ...inspector.torch_private.saved_variables import is_packed
from ...inspector.torch_private.sequence_numbers import UNNUMBERED
from ..schedule.policy import Choice, Places, Policy
from .scheduling_problem import Problem

_LOOKED_AT = 32  # nodes whose gradients are compared each time; others the next time
_MOST_NODES = 500_000  # of all graphs whose orders are kept: a node takes some 150 bytes


@dataclass(slots=True)
class KeptOrder:
    """A policy's order in one kind of graph, relative to the engine's own order.

    Attributes:
        places: for each position, the node's place in the engine's own order; None if the order is the engine's.
        name, note: name and note of the run, see `Run`.
    """

    places: list[int] | None
    name: str
    note: str
    _metas: list[tuple[Any, ...]]
    _edges: list[int]
    _uses: int = 0

    def __len__(self) -> int:
        return len(self._metas)

    @staticmethod
    def of(
        nodes: Sequence[Node], metas: Sequence[tuple[Any, ...]], places: list[int], name: str, note: str
    ) -> KeptOrder:
        """Store a planned order.

        Args:
            nodes: the nodes in the engine's own order.
            metas: the result of `facts_of_each` for them, from before the backward.
            places: for each position of the planned order, the place in the engine's.
            name, note: name and note of the run.
        """
        own = places == list(range(len(nodes)))
        takes: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # equal ones are one object
        metas = [takes.setdefault(meta, meta) for meta in metas]
        return KeptOrder(None if own else places, name, note, metas, _edges_of(nodes))

    def suits(self, nodes: Sequence[Node]) -> bool:
        """Return whether the nodes look like those of the planned graph.

        Compares gradients and saved tensors of a sample that changes with each use, and all edges at the first, second,
        fourth, eighth use and so on.
        """
        self._uses += 1
        step = max(len(nodes) // _LOOKED_AT, 1)
        some = slice(self._uses % step, None, step)
        if facts_of_each(nodes[some]) != self._metas[some]:
            return False
        return bool(self._uses & (self._uses - 1)) or _edges_of(nodes) == self._edges


_orders: Latest[KeptOrder] = Latest(_MOST_NODES, len)


def seen(policy: Policy, keep_graph: bool, nodes: Sequence[Node], numbers: Sequence[int]) -> Hashable:
    """Return a cache key from the engine's own order: node types, and creation numbers relative to the first node.

    Args:
        policy: the policy whose order is needed.
        keep_graph: whether the graph is retained.
        nodes: the nodes in the engine's own order.
        numbers: their sequence numbers.
    """
    first = next((number for number in numbers if number < UNNUMBERED), 0)
    facts: list[Hashable] = [policy.name, keep_graph, types_of(nodes)]
    facts.append(tuple([first - number if number < UNNUMBERED else -1 for number in numbers]))
    if policy.plan is not None:  # existing gradients decide as well
        facts.append(have_grad([node for node, number in zip(nodes, numbers, strict=True) if number == UNNUMBERED]))
    if policy.choose is not None:  # hooks decide as well
        facts.append(hooks_registered())
    return LongKey(*facts)


def kept_order(key: Hashable, nodes: Sequence[Node]) -> KeptOrder | None:
    """Return the cached order for such a graph; None if there is none, or its nodes take other gradients."""
    found = _orders.get(key)
    return found if found is not None and found.suits(nodes) else None


def keep_order(key: Hashable, order: KeptOrder) -> None:
    """Cache the order of such graphs."""
    _orders.put(key, order)


def facts_of_each(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    """Return the facts that decide on a plan besides kinds and edges: whether hooks packed saved tensors (a plan
    does not know that the task frees those), and the inputs' metadata. Call it before the backward frees them."""
    return [(is_packed(node), *metas) for node, metas in zip(nodes, input_metadata_of_each(nodes), strict=True)]


def _edges_of(nodes: Sequence[Node]) -> list[int]:
    """Return each edge's target as a place among the nodes; -1: none."""
    places: dict[Node | None, int] = {node: place for place, node in enumerate(nodes)}
    places[None] = -1
    return [places[child] for child, _ in chain.from_iterable(node.next_functions for node in nodes)]


_plans: Latest[tuple[int, ...]] = Latest()


def kept_plan(
    name: str, planner: Callable[[Problem, Sequence[int]], list[int]], problem: Problem, ran: Sequence[int]
) -> tuple[int, ...]:
    """Return the cached plan of this policy for such a graph after these tasks, or let the planner make one."""
    return _plans.of((name, fingerprint(problem), tuple(ran)), lambda: tuple(planner(problem, ran)))


def fingerprint(problem: Problem) -> Hashable:
    """Return a key of everything that decides on a plan, except sizes of saved tensors, which mostly follow from it.

    It consists of the names of the nodes, the shapes, dtypes and devices of their gradients, the edges and roots, which
    tasks run, which leaves have a .grad, which saved tensors are packed by hooks, and whether the graph is retained.
    """
    graph = problem.graph
    return LongKey(
        tuple([(task.name, task.inputs) for task in graph.tasks]),
        graph.edges,
        graph.roots,
        problem.needed,
        tuple([leaf.grad is None for leaf in graph.leaves.values()]) if graph.nodes else None,
        tuple(map(is_packed, graph.nodes)),
        problem.keep_graph,
    )


_MOST = 8  # of one kind of graph

_turns: WeakKeyDictionary[Graph, Latest[tuple[int, ...]]] = WeakKeyDictionary()


def kept_turns(graph: Graph, policy: Policy | Choice) -> tuple[int, ...] | None:
    """Return the cached order in which all tasks of such a graph ran under this policy; None if there is none."""
    found, name = _turns.get(graph.like), _name(policy)
    return None if found is None or name is None else found.get(name)


def keep_turns(graph: Graph, policy: Policy | Choice, order: Sequence[int]) -> None:
    """Cache the order in which this policy took all tasks out of the queue."""
    like, name = graph.like, _name(policy)
    if name is None or like.nodes or len(order) < len(graph):  # one that was compared with none keeps its nodes
        return
    found = _turns.get(like)
    if found is None:
        found = _turns.setdefault(like, Latest(_MOST))
    if name not in found:
        found.put(name, tuple(order))


def forget_kept() -> None:
    """No order or plan is kept any more."""
    _orders.clear()
    _plans.clear()
    _turns.clear()


def _name(policy: Policy | Choice) -> LongKey | None:
    """Return a key for a policy whose order depends on the graph alone; None for any other policy."""
    if not isinstance(policy, Policy) or policy.dynamic:
        return None
    if isinstance(policy.key, Places):
        return LongKey(policy.key.plan)
    try:
        return LongKey(ref(policy.key)) if policy.keeps and policy.plan is None else None  # it may be the user's
    except TypeError:  # has no hash, or no weak references
        return None
