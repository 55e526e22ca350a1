"""What of a graph a backward runs that is to give the gradients of certain inputs alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


class NeededEdges(Protocol):
    def __call__(self, node: Node, edge: int | None = None) -> bool:
        """Whether the backward runs this node; with `edge`, whether its gradient for that one is needed."""


def needed_edges(roots: Sequence[Node], inputs: Sequence[Tensor | GradientEdge] | None) -> NeededEdges:
    """Of a backward from these nodes. Without inputs all of it runs."""
    if not inputs:
        return _has_edge
    wanted = {(each if isinstance(each, GradientEdge) else get_gradient_edge(each)).node for each in inputs}
    above: dict[Node, list[Node]] = {}
    waiting, seen = list(roots), set(roots)
    while waiting:
        node = waiting.pop()
        for child, _ in node.next_functions:
            if child is not None:
                above.setdefault(child, []).append(node)
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
    leading = set(wanted)  # to an input
    waiting = list(wanted)
    while waiting:
        for node in above.get(waiting.pop(), ()):
            if node not in leading:
                leading.add(node)
                waiting.append(node)

    def runs(node: Node, edge: int | None = None) -> bool:
        if edge is None:
            return any(child in leading for child, _ in node.next_functions)
        return _has_edge(node, edge) and node.next_functions[edge][0] in leading

    return runs


def _has_edge(node: Node, edge: int | None = None) -> bool:
    return edge is None or (edge < len(node.next_functions) and node.next_functions[edge][0] is not None)
