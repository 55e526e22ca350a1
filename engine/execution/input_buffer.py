"""Input buffers: gradients are converted to the receiving task's metadata, then summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...inspector.graph.graph import Edge, Graph, TensorMeta
from ...inspector.torch_private.nodes import is_cast, leaf_of
from ...inspector.torch_private.reference_counts import owned_alone, storage_owned_alone
from ...inspector.torch_private.thread_state import without_torch_function
from .accumulation_rule import Accumulate
from .gradient_layouts import is_dense

Waiting = tuple[tuple[Tensor, ...], ...]
"""The waiting gradients by input number: at most one sum, or all gradients in order of arrival."""


def fits(gradient: Tensor, meta: TensorMeta) -> bool:
    """Return whether the gradient needs no conversion for its receiver."""
    return (
        gradient.shape == meta.shape
        and (gradient.dtype is meta.dtype or meta.any_dtype)
        and gradient.layout is torch.strided
        and gradient.device == meta.device
    )


def fitted(gradient: Tensor, meta: TensorMeta, graph: Graph, edge: Edge) -> Tensor:
    """Return the gradient converted for its receiver: summed over broadcast dimensions, cast, moved.

    The rules are those of engine.cpp, validate_outputs. Most C++ nodes leave the summing to the engine: AddBackward0
    returns the broadcast shape for both operands.

    Raises:
        RuntimeError: If shape, dtype or device cannot be converted, with PyTorch's message and the task.
    """
    if meta.shape is not None and gradient.shape != meta.shape:
        try:
            gradient = gradient.sum_to_size(meta.shape)
        except RuntimeError:
            sizes = zip(reversed(meta.shape), reversed(gradient.shape), strict=False)
            if len(meta.shape) <= len(gradient.shape) and all(size in (1, wanted) for size, wanted in sizes):
                raise  # the shapes fit; the sum itself has failed
            raise _invalid(
                graph, edge, f"got {list(gradient.shape)} but expected shape compatible with {list(meta.shape)}"
            ) from None
    if gradient.dtype != meta.dtype:
        if not (gradient.dtype.is_floating_point or gradient.is_complex() == meta.dtype.is_complex):
            raise _invalid(graph, edge, f"expected {meta.dtype} but got {gradient.dtype}")
        is_leaf = graph.tasks[edge.next_task].is_leaf
        # Some nodes accept gradients of another dtype, which the engine does not cast.
        if not meta.any_dtype and (is_leaf or is_cast(graph.nodes[edge.next_task], edge.input, gradient.dtype)):
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


def _invalid(graph: Graph, edge: Edge, why: str) -> RuntimeError:
    given = edge.task == edge.next_task  # a root's gradient, passed by the user
    what = f"invalid gradient at index {edge.output} - {why}"
    source = "grad_tensors" if given else graph.describe(edge.task)
    error = RuntimeError(what if given else f"Function {graph.tasks[edge.task].name} returned an {what}")
    error.add_note(
        f"tapescope: the gradient is passed from {source} to input {edge.input} of {graph.describe(edge.next_task)}"
    )
    return error


class InputBuffer:
    """The gradients that wait for one task, one sum per input number (input_buffer.cpp, accumulate)."""

    __slots__ = ("gradients",)

    def __init__(self, count: int) -> None:
        self.gradients: list[Tensor | None] = [None] * count

    def add(self, number: int, gradient: Tensor) -> bool:
        """Add a gradient, in place if nothing else holds the sum: no node, hook, other buffer or user.

        Return whether the gradient itself is now in the buffer; the caller must then drop its own references.
        """
        gradients = self.gradients
        waiting = gradients[number]
        if waiting is None:
            gradients[number] = gradient
            return True
        with without_torch_function():  # as in C++
            if torch.is_grad_enabled() or waiting.layout is not torch.strided or type(gradient) is not Tensor:
                gradients[number] = _plus(waiting, gradient)
                return False
            # This local name is also a reference: with it the sum would be out of place, as can_accumulate_inplace in
            # input_buffer.cpp needs use_count() == 1.
            del waiting
            if _disposable(gradients, number):
                gradients[number].add_(gradient)  # type: ignore[union-attr]
            else:
                gradients[number] = gradients[number] + gradient  # type: ignore[operator]
            return False

    def take(self) -> list[Tensor | None]:
        """Return the task's inputs. The buffer must not be used afterwards."""
        return self.gradients

    def shown(self) -> tuple[Tensor | None, ...]:
        """Return the inputs that the task would receive now."""
        return tuple(self.gradients)

    def count(self, number: int) -> int:
        """Return the number of gradients that wait for this input."""
        return int(self.gradients[number] is not None)

    def waiting(self) -> Waiting:
        """Return the waiting gradients by input number."""
        return alone(self.gradients)

    def put(self, waiting: Waiting) -> None:
        """Replace the waiting gradients."""
        self.gradients[:] = [each[0] if each else None for each in waiting]

    def take_back(self, number: int, before: Tensor | None, count: int) -> None:
        """Undo an `add`. `before` was the first gradient of this input, and `count` the number of its gradients."""
        self.gradients[number] = before


class OutOfPlaceBuffer(InputBuffer):
    """An input buffer in which each sum is a new tensor."""

    __slots__ = ()

    def add(self, number: int, gradient: Tensor) -> bool:
        waiting = self.gradients[number]
        self.gradients[number] = gradient if waiting is None else _plus(waiting, gradient)
        return waiting is None


class ListBuffer(InputBuffer):
    """An input buffer that keeps all gradients and sums them when the task runs. `gradients` has each input's first
    one."""

    __slots__ = ("_more",)

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._more: dict[int, list[Tensor]] = {}

    def add(self, number: int, gradient: Tensor) -> bool:
        if self.gradients[number] is None:
            self.gradients[number] = gradient
        else:
            self._more.setdefault(number, []).append(gradient)
        return True

    def take(self) -> list[Tensor | None]:
        for number in sorted(self._more):
            self.gradients[number] = _total(self.gradients[number], self._more.pop(number))
        return self.gradients

    def shown(self) -> tuple[Tensor | None, ...]:
        return tuple(
            gradient if gradient is None or number not in self._more else _total(gradient, self._more[number])
            for number, gradient in enumerate(self.gradients)
        )

    def count(self, number: int) -> int:
        return super().count(number) + len(self._more.get(number, ()))

    def waiting(self) -> Waiting:
        return tuple(
            () if gradient is None else (gradient, *self._more.get(number, ()))
            for number, gradient in enumerate(self.gradients)
        )

    def put(self, waiting: Waiting) -> None:
        super().put(waiting)
        self._more = {number: list(each[1:]) for number, each in enumerate(waiting) if len(each) > 1}

    def take_back(self, number: int, before: Tensor | None, count: int) -> None:
        super().take_back(number, before, count)
        more = self._more.pop(number, [])[: max(count - 1, 0)]
        if more:
            self._more[number] = more


BUFFERS: dict[Accumulate, type[InputBuffer]] = {
    "inplace": InputBuffer,
    "out_of_place": OutOfPlaceBuffer,
    "list": ListBuffer,
}


def alone(gradients: Sequence[Tensor | None]) -> Waiting:
    """Return these gradients as waiting gradients, one per input."""
    return tuple(() if gradient is None else (gradient,) for gradient in gradients)


def _plus(waiting: Tensor, gradient: Tensor) -> Tensor:
    """Return the sum as a new tensor. A sparse gradient is the left operand, as it accepts any layout on the right."""
    return waiting + gradient if torch.is_grad_enabled() or waiting.layout is torch.strided else gradient + waiting


def _total(first: Tensor | None, more: Sequence[Tensor]) -> Tensor:
    """Return the sum of a list: a new tensor for the first two, to which the others are added in place."""
    assert first is not None
    with without_torch_function():
        found = _plus(first, more[0])
        for gradient in more[1:]:
            plain = type(found) is type(gradient) is Tensor and found.layout is torch.strided
            if plain and not torch.is_grad_enabled() and not found._is_zerotensor():
                found.add_(gradient)
            else:
                found = _plus(found, gradient)
        return found


def _disposable(gradients: list[Tensor | None], number: int) -> bool:
    """Return whether a sum may be modified in place (input_buffer.cpp, can_accumulate_inplace)."""
    if not owned_alone(gradients, number):
        return False
    tensor = gradients[number]
    if type(tensor) is not Tensor or tensor._is_zerotensor():
        return False
    return (tensor.is_contiguous() or is_dense(tensor.shape, tensor.stride())) and storage_owned_alone(tensor)
