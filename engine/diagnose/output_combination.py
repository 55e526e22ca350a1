"""What a forward makes of the outputs of an ensemble's members: a stack, one long tensor, a sum, a mean, or a list."""

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
    """What becomes of the members' outputs, and along which dimension of the result."""

    made: Made
    dim: int = 0

    @property
    def replaces(self) -> str:
        """What the user's code has that is no longer needed."""
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
        """The same of one tensor of this name that has the member first, as an expression."""
        moved = f"{name}.movedim(0, {self.dim})" if self.dim else name
        return {
            "stacked": moved,
            "concatenated": f"{moved}.flatten({self.dim}, {self.dim + 1})",
            "summed": f"{name}.sum(0)",
            "averaged": f"{name}.mean(0)",
            "listed": f"{name}.unbind(0)",
        }[self.made]

    def of(self, outputs: Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """What the forward makes of them."""
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
        """The gradients of what it made, from those of the outputs: one, or of a list one each."""
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
    """What a graph makes of some outputs.

    Args:
        graph: the graph, with its nodes.
        ends: the outputs in order, each as (task, number of its output in the forward).
        zeros_added: sequence numbers of additions to the number 0, as Python's `sum` begins with.
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
        return LISTED  # others among them, which may have no gradient, or in another order
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
    """Of a dimension counted from the end nodes keep what an unsigned number makes of it."""
    return (saved - 2**64 if saved >= 2**63 else saved) % max(dims, 1)


def _are_summed(graph: Graph, taking: Sequence[Edge], zeros_added: Set[int]) -> bool:
    """Whether additions make one sum of exactly these, and zero: each takes two of them or of the sums so far, and is
    taken once."""
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
            return False  # a number, or a tensor without a gradient
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
