"""Which tasks a backward with `inputs=` needs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..inspector.graph import Graph

Inputs = Tensor | Sequence[Tensor] | GradientEdge | Sequence[GradientEdge]


def as_inputs(inputs: Inputs) -> tuple[Tensor | GradientEdge, ...]:
    """The inputs as a tuple, checked as `torch.autograd.backward` does, and told to retain their gradients.

    Raises:
        RuntimeError: there is none, or one doesn't require grad.
    """
    found: tuple[Tensor | GradientEdge, ...]
    found = (inputs,) if isinstance(inputs, Tensor | GradientEdge) else tuple(inputs)
    if not found:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    for each in found:
        if isinstance(each, Tensor):
            if not each.requires_grad:
                raise RuntimeError("One of the differentiated Tensors does not require grad")
            each.retain_grad()
    return found


def needed_tasks(graph: Graph, inputs: Sequence[Tensor | GradientEdge]) -> frozenset[int]:
    """The tasks from which a path leads to one of the inputs, theirs included (engine.cpp, init_to_execute)."""
    ids = {node: task_id for task_id, node in enumerate(graph.nodes)}
    edges = (each if isinstance(each, GradientEdge) else get_gradient_edge(each) for each in inputs)
    stack = [ids[edge.node] for edge in edges if edge.node in ids]
    needed: set[int] = set()
    while stack:
        task_id = stack.pop()
        if task_id not in needed:
            needed.add(task_id)
            stack.extend(edge.task for edge in graph.in_edges[task_id])
    return frozenset(needed)
