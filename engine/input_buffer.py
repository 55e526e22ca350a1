"""A gradient's way into a task: fitted to what the task takes, then summed with what is there."""

from __future__ import annotations

import torch
from torch import Tensor

from ..inspector.graph import Edge, Graph, TensorMeta
from ..inspector.torch_internals import leaf_of


def fitted(gradient: Tensor, meta: TensorMeta, graph: Graph, edge: Edge) -> Tensor:
    """The gradient as its receiver takes it: summed over broadcast dimensions, cast, moved.

    The rules are those of engine.cpp, validate_outputs. Most C++ nodes leave the summing to the engine: AddBackward0
    gives the broadcast shape for both operands.

    Raises:
        RuntimeError: shape, dtype or device can't be made to fit; PyTorch's message with the task added.
    """
    if meta.shape is not None and gradient.shape != meta.shape:
        if not _broadcasts(meta.shape, gradient.shape):
            raise _invalid(
                graph, edge, f"got {list(gradient.shape)} but expected shape compatible with {list(meta.shape)}"
            )
        gradient = gradient.sum_to_size(meta.shape)
    if gradient.dtype != meta.dtype:
        if not (gradient.dtype.is_floating_point or gradient.is_complex() == meta.dtype.is_complex):
            raise _invalid(graph, edge, f"expected {meta.dtype} but got {gradient.dtype}")
        gradient = gradient.to(meta.dtype)
    if gradient.layout not in (torch.strided, torch.sparse_coo) and graph.tasks[edge.next_task].is_leaf:
        expected = leaf_of(graph.nodes[edge.next_task]).layout
        if gradient.layout != expected:
            raise _invalid(graph, edge, f"expected layout {expected} but got {gradient.layout}")
    if gradient.device != meta.device:
        if gradient.dim():
            raise _invalid(graph, edge, f"expected device {meta.device} but got {gradient.device}")
        gradient = gradient.to(meta.device)
    return gradient


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` can be expanded to `to`."""
    if len(shape) > len(to):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(to), strict=False))


def _invalid(graph: Graph, edge: Edge, why: str) -> RuntimeError:
    task = graph.tasks[edge.task]
    error = RuntimeError(f"Function {task.name} returned an invalid gradient at index {edge.output} - {why}")
    error.add_note(
        f"tapehead: it goes from {graph.describe(task)} to input {edge.input} of {graph.describe(edge.next_task)}"
    )
    return error


class InputBuffer:
    """The gradients that wait for one task, one sum per input number.

    PyTorch adds in place where it holds the only reference (input_buffer.cpp, accumulate). Python can't see reference
    counts of the C++ side, so here only sums which this buffer made itself are added to in place: never one that a
    node, a hook, another buffer or a user may hold too. That costs one tensor more than in PyTorch while a second
    gradient arrives; the values are the same.
    """

    __slots__ = ("_own", "gradients")

    def __init__(self, count: int) -> None:
        self.gradients: list[Tensor | None] = [None] * count
        self._own = 0  # bit i: gradients[i] is a sum made here

    def add(self, number: int, gradient: Tensor) -> None:
        waiting = self.gradients[number]
        if waiting is None:
            self.gradients[number] = gradient
        elif self._own >> number & 1 and gradient.layout is torch.strided:
            waiting.add_(gradient)
        else:
            total = waiting + gradient if waiting.layout is torch.strided else gradient + waiting
            self.gradients[number] = total
            if type(total) is Tensor and total.layout is torch.strided:
                self._own |= 1 << number

    def look(self) -> tuple[Tensor | None, ...]:
        """The sums so far, for the user to keep: from now on they are not changed in place."""
        self._own = 0
        return tuple(self.gradients)
