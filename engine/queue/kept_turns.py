"""Orders in which tasks left the ready queue, kept: a graph like that one need not ask it again."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary, ref

from ...inspector.graph.graph import Graph
from ...inspector.graph.latest import Latest, LongKey
from .policy import Choice, Places, Policy

_MOST = 8  # of one kind of graph

_turns: WeakKeyDictionary[Graph, Latest[tuple[int, ...]]] = WeakKeyDictionary()


def kept_turns(graph: Graph, policy: Policy | Choice) -> tuple[int, ...] | None:
    """The order of all tasks of such a graph under this policy; None where none is kept."""
    found, name = _turns.get(graph.like), _name(policy)
    return None if found is None or name is None else found.get(name)


def keep_turns(graph: Graph, policy: Policy | Choice, order: Sequence[int]) -> None:
    """All tasks have run in the order in which this policy took them out of the queue."""
    like, name = graph.like, _name(policy)
    if name is None or like.nodes or len(order) < len(graph):  # one that was compared with none keeps its nodes
        return
    found = _turns.get(like)
    if found is None:
        found = _turns.setdefault(like, Latest(_MOST))
    if name not in found:
        found.put(name, tuple(order))


def forget_turns() -> None:
    """None is kept any more."""
    _turns.clear()


def _name(policy: Policy | Choice) -> LongKey | None:
    """What decides on the order in graphs that are alike; None where more does, or it can't be told from others."""
    if not isinstance(policy, Policy) or policy.dynamic:
        return None
    if isinstance(policy.key, Places):
        return LongKey(policy.key.plan)
    try:
        return LongKey(ref(policy.key)) if policy.keeps and policy.plan is None else None  # it may be the user's
    except TypeError:  # has no hash, or no weak references
        return None
