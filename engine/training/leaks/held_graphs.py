"""Finds graphs of earlier steps that are still alive, and their holders."""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.nn.parameter import is_lazy

from ....inspector.garbage_collector import all_objects
from ....inspector.graph.source_lines import Source
from ....inspector.references.find_referrers import Holder, who_holds
from ....inspector.torch_private.nodes import leaf_of
from ....inspector.torch_private.saved_variables import has_edges, saved_slots
from ....inspector.torch_private.sequence_numbers import UNNUMBERED, number_of
from ....inspector.torch_private.tensors import node_of
from ...memory.census import Place, storages_of
from ...session.check_saved_on_ctx import outputs_on_ctx
from .step_tokens import StepTokens

_MOST_TARGETS = 128  # objects whose holders are searched at once
_MOST_NODES = 50_000  # nodes whose bytes are counted

GRAD_OF = "the .grad of "
"""The prefix of a holder's text if the holder is a parameter's gradient."""

ON_CTX = "ctx."
"""The prefix of a holder's text if a custom Function keeps its own output."""

IsOld = Callable[[int], bool]
"""Returns whether the graphs of a step are no longer needed."""


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """The graphs of earlier steps that one holder keeps alive.

    Attributes:
        holder: the holder; the first of several similar ones.
        alike: the number of holders that differ from it at most by an index.
        steps: the earlier steps whose nodes it keeps, in order.
        nodes: the number of these nodes.
        nbytes: bytes of their saved tensors and of the held tensors; storages count once, parameters do not count.
        is_bounded: whether the search stopped at its limit.
        crosses: whether one graph spans several steps.
        storages: the places of the storages.
    """

    holder: Holder
    alike: int
    steps: tuple[int, ...]
    nodes: int
    nbytes: int
    is_bounded: bool
    crosses: bool
    storages: frozenset[Place]


def held_graphs(
    tokens: StepTokens,
    is_old: IsOld,
    parameters: Iterable[tuple[str, Tensor]] = (),
    optimized: Iterable[Tensor] = (),
) -> list[HeldGraphs]:
    """Return the holders of graphs of old steps, the largest first. The search keeps nothing alive.

    Args:
        tokens: the marks of steps.
        is_old: see `IsOld`.
        parameters: the parameters with their names. C++ holds their `.grad`s, which a search for holders cannot find.
        optimized: the optimizers' parameters, which may be others. A graph that no module returned is the loop's only
            if it leads to one of these parameters: another thread's nodes may have the same sequence numbers.
    """
    parameters = list(parameters)
    leaves = set(map(id, itertools.chain((each for _, each in parameters), optimized)))
    targets, is_all = _targets(tokens, is_old)
    found = sorted(
        _by_holder(targets, tokens, is_old, parameters, leaves), key=lambda held: (-held.nbytes, -held.nodes)
    )
    return found if is_all else [replace(held, is_bounded=True) for held in found]


def _targets(tokens: StepTokens, is_old: IsOld) -> tuple[list[Any], bool]:
    """Return the tensors and nodes known to Python that lead to a node of an old step, and whether all are included.

    If there are too many, the first and the last ones are returned. Nodes are added only if there is room beside the
    tensors, which explain them.
    """
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
            if kinds[kind] is Tensor:
                node = node_of(each)
            else:
                node = None if isinstance(each, BackwardCFunction) and not has_edges(each) else each
            if node is not None and leads.to_an_old(node):
                found.append((tokens.step_of(node) or 0, each))
    found.sort(key=lambda pair: pair[0])
    tensors = [each for _, each in found if issubclass(type(each), Tensor)]
    nodes = [each for _, each in found if not issubclass(type(each), Tensor)]
    is_all = len(tensors) <= _MOST_TARGETS
    return [*_ends(tensors, _MOST_TARGETS), *_ends(nodes, max(0, _MOST_TARGETS - len(tensors)))], is_all


def _ends(found: list[Any], most: int) -> list[Any]:
    """Return the first and the last items, at most `most` together."""
    if len(found) <= most:
        return found
    first = most // 2
    return [*found[:first], *found[len(found) - most + first :]]


class _Leads:
    """Finds the nodes that lead to a node of an old step. Each node is visited once, and none behind an old one."""

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
        """Enter a new node: either it is old itself, or the nodes behind it are still to be visited."""
        if node not in self._known:
            self._known[node] = _is_marked_old(node, self._tokens, self._is_old)
            if not self._known[node]:
                waiting.append((node, (each for each, _ in node.next_functions if each is not None)))


def _is_marked_old(node: Node, tokens: StepTokens, is_old: IsOld) -> bool:
    """Return whether a token marks the node as old. Another thread's node may have the same sequence number."""
    made = tokens.step_of(node)
    if made is None or not is_old(made):
        return False
    marked = tokens.marked_in(node)
    return marked is not None and is_old(marked)


def _by_holder(
    targets: list[Any],
    tokens: StepTokens,
    is_old: IsOld,
    parameters: Iterable[tuple[str, Tensor]],
    leaves: Container[int],
) -> Iterator[HeldGraphs]:
    """Group targets by holder. Named holders come first, and tensors before nodes, because they explain the rest."""
    gradients = {id(each.grad): name for name, each in parameters if each.grad is not None}
    holders = [
        Holder(f"{GRAD_OF}{gradients[id(target)]}", "named")
        if id(target) in gradients
        else (None if holder.kind == "named" else _on_ctx(_target_node(target))) or holder
        for target, holder in zip(targets, who_holds(targets), strict=True)
    ]
    groups: dict[tuple[bool, bool, str], list[int]] = {}
    for place, holder in enumerate(holders):
        is_tensor = issubclass(type(targets[place]), Tensor)
        groups.setdefault((holder.kind != "named", not is_tensor, alike(holder.text)), []).append(place)
    explained: set[Node] = set()
    for group in sorted(groups, key=lambda each: each[:2]):
        places = [place for place in groups[group] if _target_node(targets[place]) not in explained]
        if places:
            size = _Size([targets[place] for place in places], tokens, is_old, leaves)
            explained |= size.nodes
            holder = holders[places[0]]
            if size.is_marked or (size.is_likely and holder.kind != "unnamed"):
                steps = tuple(sorted(size.steps))
                yield HeldGraphs(
                    holder,
                    len(places),
                    steps,
                    size.old_nodes,
                    size.nbytes,
                    size.is_bounded,
                    size.crosses,
                    size.storages,
                )


def _on_ctx(node: Node) -> Holder | None:
    """Return the `ctx` of a custom Function that keeps its own output, a cycle; None if this node does not."""
    attribute = next(outputs_on_ctx(node), None)
    if attribute is None:
        return None
    function: Any = type(node)._forward_cls  # type: ignore[attr-defined]
    for method in (function.setup_context, function.forward):
        code = method.__code__
        for step in dis.get_instructions(code):
            if step.opname == "STORE_ATTR" and step.argval == attribute and step.positions and step.positions.lineno:
                at = Source(code.co_filename, step.positions.lineno, code.co_name).short
                return Holder(f"{ON_CTX}{attribute} of {function.__name__}, set at {at}", "cycle", at)
    return Holder(f"{ON_CTX}{attribute} of {function.__name__}", "cycle")


def alike(text: str) -> str:
    """Return a holder's text without the parts that differ between similar holders.

    These are an index, a function's line, and the parameter of a .grad.
    """
    if text.startswith(GRAD_OF):
        return GRAD_OF
    return re.sub(r"\[[^\]]*\]", "[]", re.sub(r":\d+", ":", text))


def _target_node(target: Any) -> Node:
    node: Node = target.grad_fn if issubclass(type(target), Tensor) else target
    return node


class _Size:
    """The nodes and bytes of earlier steps that some tensors and nodes keep alive."""

    def __init__(self, roots: Iterable[Any], tokens: StepTokens, is_old: IsOld, leaves: Container[int]) -> None:
        self.nodes: set[Node] = set()
        self.steps: set[int] = set()
        self.old_nodes = 0
        self.is_bounded = False
        self.is_marked = False
        self._is_marked_late = False
        self._leads_to_leaf = False
        self._leaves = leaves
        self.crosses = False
        self._storages: dict[Place, int] = {}
        for root in roots:
            if issubclass(type(root), Tensor):
                self._add(root)
            self._walk(_target_node(root), tokens, is_old)

    @property
    def is_likely(self) -> bool:
        """Whether graphs that no module returned are the loop's, and of several steps. A single small one may be meant
        to stay, such as the normalized weight of a module that is no longer called."""
        return self._is_marked_late and self._leads_to_leaf and (self.crosses or len(self.steps) > 1)

    @property
    def nbytes(self) -> int:
        return sum(self._storages.values())

    @property
    def storages(self) -> frozenset[Place]:
        return frozenset(self._storages)

    def _walk(self, root: Node, tokens: StepTokens, is_old: IsOld) -> None:
        waiting = [] if root in self.nodes else [root]
        self.nodes.update(waiting)
        steps = set()
        while waiting:
            node = waiting.pop()
            step = tokens.step_of(node)
            if step is not None:  # a node without a step may be another thread's, with the loop's nodes below it
                steps.add(step)
                if is_old(step):
                    self._count(node, tokens)
            elif number_of(node) == UNNUMBERED:
                self._leads_to_leaf |= id(leaf_of(node)) in self._leaves
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
        if tokens.is_marked_late(node):
            self._is_marked_late = True
        elif tokens.marked_in(node) is not None:
            self.is_marked = True
        for slot in saved_slots(node):
            self._add(slot.tensor)

    def _add(self, tensor: Tensor) -> None:
        if not isinstance(tensor, nn.Parameter):
            self._storages.update(storages_of([tensor]))
