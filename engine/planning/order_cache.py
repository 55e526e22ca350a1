"""The cache of orders and plans for graphs that look alike."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any
from weakref import ref

from torch.autograd.graph import Node

from ...inspector.capture.graph_cache import forget_graphs
from ...inspector.graph.graph import Graph
from ...inspector.graph.lru_cache import Latest, LongKey
from ...inspector.torch_private.hooks import hooks_registered
from ...inspector.torch_private.nodes import (
    InputMetadata,
    have_grad,
    input_metadata_of_each,
    input_shapes,
    output_metadata,
    types_of,
)
from ...inspector.torch_private.saved_variables import is_packed
from ...inspector.torch_private.sequence_numbers import UNNUMBERED, current_number, spaced_numbers
from ..schedule.policy import Choice, Places, Policy
from .scheduling_problem import Problem

_LOOKED_AT = 8  # nodes whose gradients are compared each time; others the next time
_MOST_UNREAD = 15  # backwards between two that read the order of their graph
_LEAVES_IN_KEY = 32  # in an `engine_key`, about so many
_YOUNGEST = 5  # most nodes in a `youngest_key`
_MOST_BYTES = 75_000_000  # of all cached orders
_ENTRY_BYTES = 300_000  # counted for each order besides its nodes, which limits their number
_NODE_BYTES = 200  # of each node of an `EngineOrder`; a task of other orders takes 8


@dataclass(slots=True)
class EngineOrder:
    """A policy's order in one kind of graph, relative to the engine's own order, so that the graph need not be read.

    Attributes:
        places: for each position, the node's place in the engine's own order; None if the order is the engine's.
        numbers: for each node in the engine's own order, the sequence number with which it runs at its position.
        name, note: name and note of the run, see `Run`.
        is_ambiguous: whether graphs with another order have the same `youngest_key`.
    """

    places: list[int] | None
    numbers: list[int]
    name: str
    note: str
    _looks: list[tuple[Any, ...]]
    _metas: list[tuple[Any, ...]]
    _edges: list[int]
    _is_by_memory: bool
    _uses: int = 0
    _unread_left: int = 0
    is_ambiguous: bool = False

    def __len__(self) -> int:
        return len(self._metas)

    @staticmethod
    def of(
        policy: Policy, nodes: Sequence[Node], facts: NodeFacts, places: list[int], name: str, note: str
    ) -> EngineOrder:
        """Store a planned order.

        Args:
            policy: the policy whose order it is.
            nodes: the nodes in the engine's own order.
            facts: the result of `node_facts` for them, from before the backward.
            places: for each position of the planned order, the place in the engine's.
            name, note: name and note of the run.
        """
        takes: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # equal ones are one object
        looks, metas = ([takes.setdefault(each, each) for each in column] for column in facts)
        rest = name, note, looks, metas, _edges_of(nodes), policy.plan is not None
        if places == list(range(len(nodes))):
            _as_engine.add(policy.name)
            return EngineOrder(None, [], *rest)
        numbers = [0] * len(nodes)
        for place, number in zip(places, spaced_numbers(len(nodes)), strict=True):
            numbers[place] = number
        return EngineOrder(places, numbers, *rest)

    def suits(self, nodes: Sequence[Node]) -> bool:
        """Return whether the nodes look like those of the planned graph.

        Compares shapes of gradients and saved tensors of a sample that changes with each use, and whether leaves among
        it have a .grad. All edges, and the sample's other metadata, are compared at the first, second, fourth, eighth
        use and so on.
        """
        self._uses += 1
        step = max(len(nodes) // _LOOKED_AT, 1)
        some = slice(self._uses % step, None, step)
        if _looks_of(nodes[some], self._is_by_memory) != self._looks[some]:
            return False
        if not self._uses & (self._uses - 1) and (
            _edges_of(nodes) != self._edges or input_metadata_of_each(nodes[some]) != self._metas[some]
        ):
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


_as_engine: set[str] = set()
"""The policies whose order in some cached graph was the engine's own; only their graphs have a `youngest_key`."""


def forget_orders() -> None:
    """Clear the caches of graphs and of orders."""
    forget_graphs()
    CACHED_ORDERS.clear()
    _as_engine.clear()


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
    if policy.plan is not None:  # existing gradients decide as well, and mostly all leaves or none have one
        leaves = [node for node, number in zip(nodes, numbers, strict=True) if number == UNNUMBERED]
        facts.append(have_grad(leaves[:: max(len(leaves) // _LEAVES_IN_KEY, 1)]))
    if policy.choose is not None:  # hooks decide as well
        facts.append(_previous.known_hooks)
    return LongKey(*facts)


class _Previous(threading.local):
    """The state at the start of the thread's previous backward.

    Attributes:
        number: the sequence number of its root.
        hooks: the number of hooks registered; None before the first backward.
        known_hooks: the same, or None if a hook had been registered since the backward before. A program that registers
            one in each step would otherwise have a key of its own, and a plan, in each step.
    """

    number = 0
    hooks: int | None = None
    known_hooks: int | None = None


_previous = _Previous()


def may_have_new_hooks(policy: Policy) -> bool:
    """Return whether the policy's choice depends on hooks, and one was registered since the previous backward.

    An order other than the engine's is then not cached, since a later hook of the same loop may speak against it.
    """
    return policy.choose is not None and _previous.known_hooks is None


def youngest_key(policy: Policy, keep_graph: bool, root: Node) -> Hashable | None:
    """Return a cache key of graphs that probably are equal.

    None if it cannot be made, or is not needed, because the policy's order never was the engine's.

    It consists of the number of nodes that the thread created since its previous backward, and facts about nodes below
    the root, each the youngest to which the last one leads: types, relative numbers, the last one's metadata, and
    whether the first leaf has a .grad.

    Args:
        policy, keep_graph: as for `engine_key`.
        root: the only root, which is not a leaf.
    """
    number = current_number(root)
    created, _previous.number = number - _previous.number, number
    hooks, before = hooks_registered(), _previous.hooks
    _previous.hooks, _previous.known_hooks = hooks, hooks if before in (None, hooks) else None
    if policy.name not in _as_engine:
        return None
    nodes, numbers = [root], [created]
    leaf: Node | None = None
    for _ in range(_YOUNGEST - 1):
        youngest, highest = None, -1
        for child, _ in nodes[-1].next_functions:
            if child is not None and (its := current_number(child)) > highest:
                if its < UNNUMBERED:
                    youngest, highest = child, its
                elif leaf is None:
                    leaf = child
        if youngest is None:
            break
        nodes.append(youngest)
        numbers.append(number - highest)
    has_grad = leaf is not None and have_grad([leaf])
    try:
        return LongKey(
            *(policy.name, keep_graph, types_of(nodes), *numbers),
            *(output_metadata(nodes[-1]), has_grad, _previous.known_hooks),
        )
    except TypeError:  # torch.SymInt has no hash
        return None


NodeFacts = tuple[list[tuple[Any, ...]], list[tuple[InputMetadata, ...]]]
"""For each node, facts that are cheap to compare, and the metadata of its input gradients."""


def node_facts(policy: Policy, nodes: Sequence[Node]) -> NodeFacts:
    """Return the facts on which a policy's order depends besides kinds and edges, from before the backward.

    They are the inputs' metadata, whether hooks packed saved tensors (a plan does not know that the task frees those),
    and for a plan whether leaves have a .grad.
    """
    return _looks_of(nodes, policy.plan is not None), input_metadata_of_each(nodes)


def _looks_of(nodes: Sequence[Node], is_by_memory: bool) -> list[tuple[Any, ...]]:
    """Return the shapes of each node's gradients, whether hooks packed its saved tensors, and with `is_by_memory`
    whether it is of a leaf with a .grad."""
    with_grad = have_grad(nodes) if is_by_memory else repeat(False)
    return [(is_packed(node), has, *input_shapes(node)) for node, has in zip(nodes, with_grad, strict=False)]


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
