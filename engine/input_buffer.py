"""A gradient's way into a task: fitted to what the task takes, then summed with what is there."""

from __future__ import annotations

import torch
from torch import Tensor

from ..inspector.graph import Edge, Graph, TensorMeta
from ..inspector.torch_internals import leaf_of, owned_alone, storage_owned_alone
from .layouts import is_dense


def fits(gradient: Tensor, meta: TensorMeta) -> bool:
    """Whether the gradient is as its receiver takes it, without more ado."""
    return (
        gradient.shape == meta.shape
        and gradient.dtype is meta.dtype
        and gradient.layout is torch.strided
        and gradient.device == meta.device
    )


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
    given = edge.task == edge.next_task  # by the user, for a root
    what = f"invalid gradient at index {edge.output} - {why}"
    source = "grad_tensors" if given else graph.describe(edge.task)
    error = RuntimeError(what if given else f"Function {graph.tasks[edge.task].name} returned an {what}")
    error.add_note(f"tapehead: it goes from {source} to input {edge.input} of {graph.describe(edge.next_task)}")
    return error


class InputBuffer:
    """The gradients that wait for one task, one sum per input number (input_buffer.cpp, accumulate)."""

    __slots__ = ("gradients",)

    def __init__(self, count: int) -> None:
        self.gradients: list[Tensor | None] = [None] * count

    def add(self, number: int, gradient: Tensor) -> None:
        """Adds in place where nobody else holds the sum: no node, hook, other buffer, nor user."""
        gradients = self.gradients
        waiting = gradients[number]
        if waiting is None:
            gradients[number] = gradient
            return
        graph_wanted, dense = torch.is_grad_enabled(), waiting.layout is torch.strided
        if graph_wanted or not dense or type(gradient) is not Tensor:
            gradients[number] = waiting + gradient if graph_wanted or dense else gradient + waiting
            return
        del waiting
        if _disposable(gradients, number):
            gradients[number].add_(gradient)  # type: ignore[union-attr]
        else:
            gradients[number] = gradients[number] + gradient  # type: ignore[operator]


def _disposable(gradients: list[Tensor | None], number: int) -> bool:
    """Whether a sum may be added to in place (input_buffer.cpp, can_accumulate_inplace)."""
    if not owned_alone(gradients, number):
        return False
    tensor = gradients[number]
    if type(tensor) is not Tensor or tensor._is_zerotensor():
        return False
    return (tensor.is_contiguous() or is_dense(tensor.shape, tensor.stride())) and storage_owned_alone(tensor)
