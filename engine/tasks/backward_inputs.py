"""Which tasks a backward with `inputs=` needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import Module

from ...inspector.arguments import expect
from ...inspector.graph.graph import Graph

Inputs = Tensor | GradientEdge | Sequence[Tensor] | Sequence[GradientEdge] | Sequence[Tensor | GradientEdge]


def inputs_tuple(inputs: Inputs) -> tuple[Tensor | GradientEdge, ...]:
    """One input or several, also a dict of them (`dict(model.named_parameters())`), as a tuple."""
    if isinstance(inputs, Tensor | GradientEdge):
        return (inputs,)
    wanted = "a tensor, a GradientEdge, or several of them"
    expect(inputs, Iterable, "inputs", wanted)
    if isinstance(inputs, Module):
        raise TypeError(f"inputs is a module; expected {wanted}, such as its parameters()")
    return tuple(inputs.values() if isinstance(inputs, Mapping) else inputs)


def as_inputs(inputs: Inputs) -> tuple[Tensor | GradientEdge, ...]:
    """The inputs as a tuple, checked as `torch.autograd.backward` does, which then has them retain their gradients.

    Raises:
        RuntimeError: there is none, one is no tensor, or doesn't require grad.
    """
    found = inputs_tuple(inputs)
    if not found:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    for each in found:
        if not isinstance(each, Tensor | GradientEdge):
            raise RuntimeError(f"all inputs have to be Tensors or GradientEdges, but got {type(each).__name__}")
    for each in found:
        if isinstance(each, Tensor) and not each.requires_grad:
            error = RuntimeError("can't retain_grad on Tensor that has requires_grad=False")  # PyTorch's own words
            error.add_note(
                f"tapescope: one of inputs, of shape {tuple(each.shape)}, does not require grad, so no gradient can be"
                " accumulated into it: call .requires_grad_() on it before the forward"
            )
            raise error
    return found


def retain_gradients(inputs: Iterable[Tensor | GradientEdge]) -> None:
    """The inputs of a backward that is going to run keep their gradients."""
    for each in inputs:
        if isinstance(each, Tensor):
            each.retain_grad()


def needed_tasks(graph: Graph, inputs: Sequence[Tensor | GradientEdge]) -> frozenset[int]:
    """The tasks from which a path leads to one of the inputs, theirs included (engine.cpp, init_to_execute)."""
    tasks = {node: task_id for task_id, node in enumerate(graph.nodes)}
    leaves = {leaf: task_id for task_id, leaf in graph.leaves.items()}
    stack: list[int] = []
    for each in inputs:
        if isinstance(each, Tensor) and each.is_leaf:  # compressed sparse ones have no get_gradient_edge
            task_id = leaves.get(each)
        else:
            edge = each if isinstance(each, GradientEdge) else get_gradient_edge(each)
            task_id = tasks.get(edge.node)
        if task_id is not None:
            stack.append(task_id)
    needed: set[int] = set()
    while stack:
        task_id = stack.pop()
        if task_id not in needed:
            needed.add(task_id)
            stack.extend(edge.task for edge in graph.in_edges[task_id])
    return frozenset(needed)
