"""Which graphs of earlier steps are alive, how much each of their holders keeps, and what it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from ...inspector.graph.collector import all_objects
from ...inspector.holding.search import Holder, who_holds
from ...inspector.torch_internals.saved import has_edges, saved_slots
from ...inspector.torch_internals.tensors import storage_of
from .step_tokens import StepTokens

_MOST_TARGETS = 128  # of which holders are looked for at once
_MOST_NODES = 50_000  # that are looked at for their bytes

GRAD_OF = "the .grad of "
"""Prefix of a holder's text that is a parameter's gradient."""

IsOld = Callable[[int], bool]
"""Whether a step is one whose graphs nobody needs any more."""


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """What one holder keeps of earlier steps.

    Attributes:
        holder: who holds it; where there are several alike, the first.
        alike: how many holders there are that differ from it by an index at most.
        steps: the earlier steps of which it keeps nodes, in order.
        nodes: how many of these.
        nbytes: what these have saved, and the tensors held; a storage counts once, parameters don't.
        is_bounded: whether there was more than was looked at.
        crosses: whether one graph goes from a step to another.
        addresses: of the storages.
    """

    holder: Holder
    alike: int
    steps: tuple[int, ...]
    nodes: int
    nbytes: int
    is_bounded: bool
    crosses: bool
    addresses: frozenset[int]


def held_graphs(tokens: StepTokens, is_old: IsOld, parameters: Iterable[tuple[str, Tensor]] = ()) -> list[HeldGraphs]:
    """All that keeps graphs of old steps, the most first. Nothing is kept alive by having looked.

    Args:
        tokens: the marks of steps.
        is_old: see `IsOld`.
        parameters: with their names; their `.grad`s are held by C++, where no search for holders comes.
    """
    targets, is_all = _targets(tokens, is_old)
    found = sorted(_by_holder(targets, tokens, is_old, parameters), key=lambda held: (-held.nbytes, -held.nodes))
    return found if is_all else [replace(held, is_bounded=True) for held in found]


def _targets(tokens: StepTokens, is_old: IsOld) -> tuple[list[Any], bool]:
    """The tensors and nodes of Python's that lead to an old step's node; of very many the first and the last, and nodes
    only where there is room beside the tensors, which explain them. Says whether all tensors are among them."""
    kinds: dict[type, type | None] = {}
    found: list[tuple[int, Any]] = []
    leads = _Leads(tokens, is_old)
    with all_objects() as objects:
        for each in objects:
            kind = type(each)
            if kind not in kinds:
                kinds[kind] = next((base for base in (Tensor, Node) if issubclass(kind, base)), None)
            if kinds[kind] is None or (kinds[kind] is Tensor and is_lazy(each)):
                continue
            node = _maker(each) if kinds[kind] is Tensor else _with_edges(each)
            if node is not None and leads.to_an_old(node):
                found.append((tokens.step_of(node) or 0, each))
    found.sort(key=lambda pair: pair[0])
    tensors = [each for _, each in found if issubclass(type(each), Tensor)]
    nodes = [each for _, each in found if not issubclass(type(each), Tensor)]
    is_all = len(tensors) <= _MOST_TARGETS
    return [*_ends(tensors, _MOST_TARGETS), *_ends(nodes, max(0, _MOST_TARGETS - len(tensors)))], is_all


def _maker(tensor: Tensor) -> Node | None:
    """Its node. A view that came with others (of chunk, split, unbind) and whose base was written since has none: torch
    raises where it is asked for."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _with_edges(node: Node) -> Node | None:
    return None if isinstance(node, BackwardCFunction) and not has_edges(node) else node


def _ends(found: list[Any], most: int) -> list[Any]:
    """The first and the last ones, so many together."""
    if len(found) <= most:
        return found
    first = most // 2
    return [*found[:first], *found[len(found) - most + first :]]


class _Leads:
    """Which nodes lead to one of an old step; each is looked at once, and none behind an old one."""

    def __init__(self, tokens: StepTokens, is_old: IsOld) -> None:
        self._tokens = tokens
        self._is_old = is_old
        self._known: dict[Node, bool] = {}

    def to_an_old(self, root: Node) -> bool:
        waiting: list[tuple[Node, Iterator[Node]]] = []
        self._enter(root, waiting)
        while waiting:
            node, children = waiting[-1]
            child = None if self._known[node] else next(children, None)
            if child is not None:
                self._enter(child, waiting)
                self._known[node] = self._known[child]
            else:
                waiting.pop()
                if waiting:
                    self._known[waiting[-1][0]] |= self._known[node]
        return self._known[root]

    def _enter(self, node: Node, waiting: list[tuple[Node, Iterator[Node]]]) -> None:
        """A node that is new: it is old itself, or those behind it are still to be looked at."""
        if node not in self._known:
            self._known[node] = _is_marked_old(node, self._tokens, self._is_old)
            if not self._known[node]:
                waiting.append((node, (each for each, _ in node.next_functions if each is not None)))


def _is_marked_old(node: Node, tokens: StepTokens, is_old: IsOld) -> bool:
    """Its number alone says nothing: that of a node of another thread may be one of an old step's here."""
    made = tokens.step_of(node)
    if made is None or not is_old(made):
        return False
    marked = tokens.marked_in(node)
    return marked is not None and is_old(marked)


def _by_holder(
    targets: list[Any], tokens: StepTokens, is_old: IsOld, parameters: Iterable[tuple[str, Tensor]]
) -> Iterator[HeldGraphs]:
    """A name explains what is below it: a tensor before its node, and both before what has no name."""
    gradients = {id(each.grad): name for name, each in parameters if each.grad is not None}
    holders = [
        Holder(f"{GRAD_OF}{gradients[id(target)]}", "named") if id(target) in gradients else holder
        for target, holder in zip(targets, who_holds(targets), strict=True)
    ]
    groups: dict[tuple[bool, bool, str], list[int]] = {}
    for place, holder in enumerate(holders):
        is_tensor = issubclass(type(targets[place]), Tensor)
        groups.setdefault((holder.kind != "named", not is_tensor, alike(holder.text)), []).append(place)
    explained: set[Node] = set()
    for group in sorted(groups, key=lambda each: each[:2]):
        places = groups[group]
        part = [targets[place] for place in places]
        if not explained.issuperset(map(_node_of, part)):
            size = _Size(part, tokens, is_old)
            explained |= size.nodes
            if size.is_marked:
                steps = tuple(sorted(size.steps))
                holder = holders[places[0]]
                yield HeldGraphs(
                    holder,
                    len(places),
                    steps,
                    size.old_nodes,
                    size.nbytes,
                    size.is_bounded,
                    size.crosses,
                    size.addresses,
                )


def alike(text: str) -> str:
    """Return a holder's text without the parts in which like ones differ: an index, a function's line, the parameter of
    a .grad."""
    if text.startswith(GRAD_OF):
        return GRAD_OF
    return re.sub(r"\[[^\]]*\]", "[]", re.sub(r":\d+", ":", text))


def _node_of(target: Any) -> Node:
    node: Node = target.grad_fn if issubclass(type(target), Tensor) else target
    return node


class _Size:
    """How much of earlier steps these tensors and nodes keep."""

    def __init__(self, roots: Iterable[Any], tokens: StepTokens, is_old: IsOld) -> None:
        self.nodes: set[Node] = set()
        self.steps: set[int] = set()
        self.old_nodes = 0
        self.is_bounded = False
        self.is_marked = False
        self.crosses = False
        self._storages: dict[int, int] = {}
        for root in roots:
            if issubclass(type(root), Tensor):
                self._add(root)
            self._walk(_node_of(root), tokens, is_old)

    @property
    def nbytes(self) -> int:
        return sum(self._storages.values())

    @property
    def addresses(self) -> frozenset[int]:
        return frozenset(self._storages)

    def _walk(self, root: Node, tokens: StepTokens, is_old: IsOld) -> None:
        waiting = [] if root in self.nodes else [root]
        self.nodes.update(waiting)
        steps = set()
        while waiting:
            node = waiting.pop()
            step = tokens.step_of(node)
            if step is not None:  # else another thread may have made it, and nodes of the loop be below
                steps.add(step)
                if is_old(step):
                    self._count(node, tokens)
            for child, _ in node.next_functions:
                if child is not None and child not in self.nodes:
                    self.nodes.add(child)
                    waiting.append(child)
        self.steps.update(step for step in steps if is_old(step))
        self.crosses |= len(steps) > 1

    def _count(self, node: Node, tokens: StepTokens) -> None:
        self.old_nodes += 1
        if self.old_nodes > _MOST_NODES:
            self.is_bounded = True
            return
        self.is_marked = self.is_marked or tokens.marked_in(node) is not None
        for slot in saved_slots(node):
            self._add(slot.tensor)

    def _add(self, tensor: Tensor) -> None:
        storage = None if is_lazy(tensor) or isinstance(tensor, nn.Parameter) else storage_of(tensor)
        if storage is not None:
            self._storages[storage.address] = storage.nbytes
