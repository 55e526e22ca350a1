"""The cache of orders and plans for graphs that look alike."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any
from weakref import ref

from torch.autograd.graph import Node

from ...inspector.capture.graph_cache import forget_graphs
from ...inspector.graph.graph import Graph
from ...inspector.graph.lru_cache import Latest, LongKey
from ...inspector.torch_private.hooks import hooks_registered
from ...inspector.torch_private.nodes import have_grad, input_metadata_of_each, output_metadata, types_of
from ...inspector.torch_private.saved_variables import is_packed
from ...inspector.torch_private.sequence_numbers import UNNUMBERED, current_number, youngest_first
from ..schedule.policy import Choice, Places, Policy
from .scheduling_problem import Problem

_LOOKED_AT = 32  # nodes whose gradients are compared each time; others the next time
_MOST_UNREAD = 15  # backwards between two that read the order of their graph
_YOUNGEST = 8  # nodes in a `youngest_key`
_METADATA_READ = 2  # of these, about so many with the metadata of their gradients
_MOST_BYTES = 75_000_000  # of all cached orders
_ENTRY_BYTES = 300_000  # counted for each order besides its nodes, which limits their number
_NODE_BYTES = 150  # of each node of an `EngineOrder`; a task of other orders takes 8


@dataclass(slots=True)
class EngineOrder:
    """A policy's order in one kind of graph, relative to the engine's own order, so that the graph need not be read.

    Attributes:
        places: for each position, the node's place in the engine's own order; None if the order is the engine's.
        name, note: name and note of the run, see `Run`.
        is_ambiguous: whether graphs with another order have the same `youngest_key`.
    """

    places: list[int] | None
    name: str
    note: str
    _metas: list[tuple[Any, ...]]
    _edges: list[int]
    _uses: int = 0
    _unread_left: int = 0
    is_ambiguous: bool = False

    def __len__(self) -> int:
        return len(self._metas)

    @staticmethod
    def of(
        nodes: Sequence[Node], metas: Sequence[tuple[Any, ...]], places: list[int], name: str, note: str
    ) -> EngineOrder:
        """Store a planned order.

        Args:
            nodes: the nodes in the engine's own order.
            metas: the result of `node_facts` for them, from before the backward.
            places: for each position of the planned order, the place in the engine's.
            name, note: name and note of the run.
        """
        own = places == list(range(len(nodes)))
        takes: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # equal ones are one object
        metas = [takes.setdefault(meta, meta) for meta in metas]
        return EngineOrder(None if own else places, name, note, metas, _edges_of(nodes))

    def suits(self, nodes: Sequence[Node]) -> bool:
        """Return whether the nodes look like those of the planned graph.

        Compares gradients and saved tensors of a sample that changes with each use, and all edges at the first, second,
        fourth, eighth use and so on.
        """
        self._uses += 1
        step = max(len(nodes) // _LOOKED_AT, 1)
        some = slice(self._uses % step, None, step)
        if node_facts(nodes[some]) != self._metas[some]:
            return False
        if not self._uses & (self._uses - 1) and _edges_of(nodes) != self._edges:
            return False
        self._unread_left = min(self._uses, _MOST_UNREAD)
        return True

    def may_run_unread(self) -> bool:
        """Return whether a graph with the same youngest nodes may run in the engine's own order without being read.

        The more often such graphs were read and suited, the more backwards may follow unread.
        """
        self._unread_left -= 1
        return self.places is None and not self.is_ambiguous and self._unread_left >= 0


CACHED_ORDERS: Latest[Any] = Latest(
    _MOST_BYTES, lambda order: _ENTRY_BYTES + (_NODE_BYTES if isinstance(order, EngineOrder) else 8) * len(order)
)
"""All orders that may be used again: those of the native fast path by `engine_key` and by `youngest_key`, plans and the
choices of "auto" by `fingerprint`, and the orders in which the direct engine ran all tasks by `queue_key`."""


def forget_orders() -> None:
    """Clear the caches of graphs and of orders."""
    forget_graphs()
    CACHED_ORDERS.clear()


def engine_key(policy: Policy, keep_graph: bool, nodes: Sequence[Node], numbers: Sequence[int]) -> Hashable:
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


class _Previous(threading.local):
    """The sequence number of the root of the thread's previous backward."""

    number = 0


_previous = _Previous()


def youngest_key(policy: Policy, keep_graph: bool, root: Node) -> Hashable | None:
    """Return a cache key of graphs that probably are equal; None if it cannot be made.

    It consists of the number of nodes that the thread created since its previous backward, and facts about the youngest
    nodes: types, relative numbers, the metadata of some, and whether the first leaf has a .grad.

    Args:
        policy, keep_graph: as for `engine_key`.
        root: the only root, which is not a leaf.
    """
    numbers, nodes = zip(*islice(youngest_first([root]), _YOUNGEST), strict=True)
    created, _previous.number = numbers[0] - _previous.number, numbers[0]
    children = chain.from_iterable(node.next_functions for node in nodes)
    leaf = next((child for child, _ in children if child is not None and current_number(child) == UNNUMBERED), None)
    some = nodes[:: max(len(nodes) // _METADATA_READ, 1)]
    try:
        return LongKey(
            *(policy.name, keep_graph, created, types_of(nodes), tuple([numbers[0] - number for number in numbers])),
            *(tuple(map(output_metadata, some)), leaf is not None and have_grad([leaf]), hooks_registered()),
        )
    except TypeError:  # torch.SymInt has no hash
        return None


def node_facts(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    """Return the facts on which a plan depends besides kinds and edges: whether hooks packed saved tensors (a plan does
    not know that the task frees those), and the inputs' metadata. Must be called before the backward frees them."""
    return [(is_packed(node), *metas) for node, metas in zip(nodes, input_metadata_of_each(nodes), strict=True)]


def _edges_of(nodes: Sequence[Node]) -> list[int]:
    """Return each edge's target as a place among the nodes; -1: none."""
    places: dict[Node | None, int] = {node: place for place, node in enumerate(nodes)}
    places[None] = -1
    return [places[child] for child, _ in chain.from_iterable(node.next_functions for node in nodes)]


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


def queue_key(graph: Graph, policy: Policy | Choice) -> Hashable | None:
    """Return the key of the order in which this policy runs all tasks of such a graph.

    None if the order depends on more than the graph, or if no other graph can be equal to it.
    """
    if not isinstance(policy, Policy) or policy.dynamic or graph.like.nodes:
        return None
    like = ref(graph.like)
    if isinstance(policy.key, Places):
        return like, LongKey(policy.key.plan)
    try:
        return (
            (like, LongKey(ref(policy.key))) if policy.keeps and policy.plan is None else None
        )  # it may be the user's
    except TypeError:  # has no hash, or no weak references
        return None
