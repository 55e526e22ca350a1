"""Combinations of an ensemble members' outputs in a forward: a stack, a concatenation, a sum, a mean, or a list."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor

from ...inspector.graph.graph import Edge, Graph, Task
from ...inspector.torch_private.saved_variables import saved_value

Made = Literal["stacked", "concatenated", "summed", "averaged", "listed"]


@dataclass(frozen=True, slots=True)
class Combination:
    """The operation that combines the members' outputs, and the dimension of the result that it uses."""

    made: Made
    dim: int = 0

    @property
    def replaces(self) -> str:
        """The expression in the user's code that is no longer needed."""
        return {
            "stacked": f"torch.stack(outputs{self._dim})",
            "concatenated": f"torch.cat(outputs{self._dim})",
            "summed": "their sum",
            "averaged": "torch.stack(outputs).mean(0)",
            "listed": "the list of them",
        }[self.made]

    @property
    def _dim(self) -> str:
        return f", {self.dim}" if self.dim else ""

    def code(self, name: str) -> str:
        """Return an expression that combines one tensor of this name with the member as its first dimension."""
        moved = f"{name}.movedim(0, {self.dim})" if self.dim else name
        return {
            "stacked": moved,
            "concatenated": f"{moved}.flatten({self.dim}, {self.dim + 1})",
            "summed": f"{name}.sum(0)",
            "averaged": f"{name}.mean(0)",
            "listed": f"{name}.unbind(0)",
        }[self.made]

    def of(self, outputs: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """Combine outputs as the forward does."""
        if self.made == "stacked":
            return torch.stack(list(outputs), self.dim)
        if self.made == "concatenated":
            return torch.cat(list(outputs), self.dim)
        if self.made == "summed":
            return reduce(add, outputs)
        if self.made == "averaged":
            return torch.stack(list(outputs)).mean(0)
        return outputs

    def gradient(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the combined result from those of the outputs: one, or one each for a list."""
        if self.made in ("stacked", "concatenated"):
            made = self.of(gradients)
            return [made] if isinstance(made, Tensor) else list(made)
        if self.made == "summed":
            return [gradients[0]]
        if self.made == "averaged":
            return [gradients[0] * len(gradients)]
        return list(gradients)


LISTED = Combination("listed")


def combination_of(graph: Graph, ends: Sequence[tuple[int | None, int]], zeros_added: Set[int]) -> Combination:
    """Find how a graph combines some outputs.

    Args:
        graph: the graph, with its nodes.
        ends: the outputs in order, each as (task, number of its output in the forward).
        zeros_added: sequence numbers of additions to the number 0, with which Python's `sum` starts.
    """
    taking: list[Edge] = []
    for task, output in ends:
        edges = [] if task is None else [edge for edge in graph.in_edges[task] if edge.input == output]
        if len(edges) != 1:
            return LISTED
        taking += edges
    first = graph.tasks[taking[0].task]
    if all(edge.task == first.id for edge in taking) and first.short_name in ("Stack", "Cat"):
        return _joined(graph, first, taking)
    return Combination("summed") if _are_summed(graph, taking, zeros_added) else LISTED


def _joined(graph: Graph, task: Task, taking: Sequence[Edge]) -> Combination:
    shape = task.inputs[0].shape or ()
    dim = _dim(saved_value(graph.nodes[task.id], "dim", 0), len(shape))
    sizes = [1] * len(taking)
    if task.short_name == "Cat":
        sizes = [(graph.tasks[edge.next_task].inputs[edge.input].shape or shape)[dim] for edge in taking]
    if [edge.output for edge in taking] != list(range(len(taking))) or sum(sizes) != shape[dim]:
        return LISTED  # other tensors are among them, which may have no gradient, or the order differs
    if task.short_name == "Cat":
        return Combination("concatenated", dim)
    later = [graph.tasks[edge.task] for edge in graph.in_edges[task.id]]
    if dim == 0 and len(later) == 1 and later[0].name == "MeanBackward1":
        node = graph.nodes[later[0].id]
        dims = tuple(_dim(each, len(shape)) for each in saved_value(node, "dim", ()) or ())
        if dims == (0,) and not saved_value(node, "keepdim", False):
            return Combination("averaged")
    return Combination("stacked", dim)


def _dim(saved: int, dims: int) -> int:
    """Return a dimension saved by a node. Nodes save negative dimensions as unsigned integers."""
    return (saved - 2**64 if saved >= 2**63 else saved) % max(dims, 1)


def _are_summed(graph: Graph, taking: Sequence[Edge], zeros_added: Set[int]) -> bool:
    """Return whether additions sum exactly these outputs, and zero.

    Each addition has two of the outputs or partial sums as its inputs, and each result is used once.
    """
    open_ = [(edge.task, edge) for edge in taking]
    waiting: dict[int, list[Edge]] = {}
    shape = graph.tasks[taking[0].next_task].inputs[taking[0].input].shape
    while open_:
        task, edge = open_.pop()
        adding = graph.tasks[task]
        if adding.short_name != "Add" or adding.inputs[0].shape != shape:
            return False
        if saved_value(graph.nodes[task], "alpha", 1) != 1:
            return False
        if len(graph.out_edges[task]) == 1 and adding.sequence_nr not in zeros_added:
            return False  # an operand is a number or a tensor without a gradient
        come = waiting.setdefault(task, [])
        come.append(edge)
        if len(come) < len(graph.out_edges[task]):
            continue
        del waiting[task]
        if not open_ and not waiting:
            return True
        later = graph.in_edges[task]
        if len(later) != 1:
            return False
        open_.append((later[0].task, later[0]))
    return False
