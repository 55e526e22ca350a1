"""Gradients of HIPS autograd as the engine carries them, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....inspector.hips.tape_nodes import arrays_in, is_container, is_sparse, metas_of, rebuilt, spaces_in, vspace
from ....inspector.torch_private.reference_counts import owned_alone
from ....inspector.validation import a_kind
from ...execution.accumulation_rule import Accumulate
from ...execution.input_buffer import InputBuffer, ListBuffer

_VALUE = "_tapescope_value"
_IS_SUM = "_tapescope_is_sum"

REST = object()
"""Placeholder for the other arrays of a sparse gradient, which the last tensor carries as one. Undo therefore restores
the buffer to its state before all of them."""


def carry(value: Any, shown: Tensor | None = None, is_sum: bool = False) -> Tensor:
    """Return a tensor that carries an array, a scalar or a sparse gradient through the engine.

    It shares the array's memory, so no bytes are copied. autograd continues with the value itself.

    Args:
        value: the value to carry.
        shown: the tensor to show, if it differs from the value.
        is_sum: whether autograd created the value as a sum, so that it may add to it in place.
    """
    tensor = _tensor_of(value) if shown is None else shown
    setattr(tensor, _VALUE, value)
    setattr(tensor, _IS_SUM, is_sum)
    return tensor


def value_of(tensor: Tensor) -> Any:
    """Return the value a tensor carries; for a tensor that a user put in its place, the array on its memory."""
    if hasattr(tensor, _VALUE):
        return getattr(tensor, _VALUE)
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def is_sum(tensor: Tensor) -> bool:
    """Return whether more may be added in place to the carried value."""
    return getattr(tensor, _IS_SUM, False)


def carried(gradient: Any, space: Any, places: Sequence[int], is_read: bool) -> list[Tensor]:
    """Return a gradient for a value of this space as one tensor for each of these places in it.

    Args:
        gradient: the gradient.
        space: the vspace of the value.
        places: indices of the arrays in the space.
        is_read: whether the values are read here. If so, the array that a sparse gradient adds is computed; otherwise
            only its shape is shown.

    Raises:
        TypeError: `gradient` is not a gradient of this space.
    """
    if is_sparse(gradient):
        if is_read:
            arrays = list(arrays_in(space, gradient.mut_add(space.zeros())))
            seen = [_tensor_of(arrays[place]) for place in places if arrays]
        else:
            metas = metas_of(space)
            seen = [
                torch.zeros((), dtype=metas[place].dtype, device="cpu").expand(metas[place].shape or ())
                for place in places
            ]
        *others, last = seen or [torch.zeros(0, device="cpu")]
        return [*(carry(REST, each) for each in others), carry(gradient, last)]
    try:
        arrays = list(arrays_in(space, gradient))
    except (TypeError, KeyError, IndexError):
        raise TypeError(f"a vjp returned {a_kind(gradient)} for the gradient of a container") from None
    return [carry(arrays[place]) for place in places] if arrays else [carry(np.zeros(0))]


def combined(space: Any, tensors: Sequence[Tensor | None]) -> Any:
    """Return the value of this space that these tensors carry, with zeros for missing ones."""
    spaces = spaces_in(space)
    found = (
        each.zeros() if tensor is None else value_of(tensor) for each, tensor in zip(spaces, tensors, strict=False)
    )
    return rebuilt(space, found)


def flat(space: Any, value: Any) -> Tensor:
    """Return a value of this space as one tensor: an array's own memory; for a container, all elements in one
    vector."""
    tensors = [_tensor_of(array) for array in arrays_in(space, value)]
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if is_container(space) else tensors[0]


def _tensor_of(value: Any) -> Tensor:
    """Return the array as a tensor on the same memory; a copy if torch does not support its strides or byte order."""
    if not isinstance(value, np.ndarray | np.generic | int | float | complex):
        raise TypeError(f"a vjp returned {a_kind(value)} for a gradient; expected an array or a scalar")
    array = np.asarray(value)
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable:
        array = np.asarray(
            _Writeable(array)
        )  # torch would warn about read-only memory, to which nothing is written here
    return torch.from_numpy(array)


class _Writeable:
    """The memory of a read-only array, without the read-only flag."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


class HipsBuffer(InputBuffer):
    """The input buffer of one task, with one gradient for each array of its node's value.

    The first gradient is kept unchanged. The second is summed with it into a new array, to which later ones are added
    in place. A gradient of indexing adds to zeros of the full size, which become a sum. A sum that is referenced
    elsewhere is copied first.
    """

    __slots__ = ("_space",)

    def __init__(self, space: Any, count: int) -> None:
        super().__init__(count)
        self._space = space

    def add(self, number: int, gradient: Tensor) -> bool:
        value = value_of(gradient)
        if value is REST:
            return False
        if is_sparse(value):
            self._add_sparse(value)
            return False
        if self.gradients[number] is None:
            self.gradients[number] = gradient
            return True
        alone = self._alone(number)  # before another local name adds a reference
        waiting = self.gradients[number]
        assert waiting is not None
        before = value_of(waiting)
        if is_sum(waiting):
            self._keep(number, vspace(value).mut_add(before if alone else np.copy(before), value))
        else:
            self._keep(number, vspace(value).add(before, value))
        return False

    def _add_sparse(self, gradient: Any) -> None:
        alone = [self._alone(number) for number in range(len(self.gradients))]
        bases = []
        for number, space in enumerate(spaces_in(self._space)):
            waiting = self.gradients[number]
            if waiting is not None and is_sum(waiting):
                before = value_of(waiting)
                bases.append(before if alone[number] else np.copy(before))
            else:
                bases.append(space.mut_add(None, space.zeros() if waiting is None else value_of(waiting)))
        for number, value in enumerate(arrays_in(self._space, gradient.mut_add(rebuilt(self._space, iter(bases))))):
            self._keep(number, value)

    def _keep(self, number: int, value: Any) -> None:
        """Store a sum; if it was added to in place, it is the same array, and its tensor stays."""
        waiting = self.gradients[number]
        if waiting is None or value_of(waiting) is not value:
            self.gradients[number] = carry(value, is_sum=True)

    def _alone(self, number: int) -> bool:
        """Return whether nothing else references the waiting gradient."""
        return owned_alone(self.gradients, number)


class HipsOutOfPlaceBuffer(HipsBuffer):
    """An input buffer in which each sum is a new array."""

    __slots__ = ()

    def _alone(self, number: int) -> bool:
        return False


class HipsListBuffer(ListBuffer):
    """An input buffer that keeps all gradients, sparse ones unchanged, and sums them per array when the task runs.

    autograd did so before its #219 (vsum).
    """

    __slots__ = ("_space",)

    def __init__(self, space: Any, count: int) -> None:
        super().__init__(count)
        self._space = space

    def add(self, number: int, gradient: Tensor) -> bool:
        return value_of(gradient) is not REST and super().add(number, gradient)

    def take(self) -> list[Tensor | None]:
        taken = list(self.shown())
        self.gradients.clear()
        self._more.clear()
        return taken

    def shown(self) -> tuple[Tensor | None, ...]:
        total = HipsBuffer(self._space, len(self.gradients))
        for number, tensors in enumerate(self.waiting()):
            for tensor in tensors:
                total.add(number, tensor)
        return total.shown()


HIPS_BUFFERS: dict[Accumulate, type[HipsBuffer] | type[HipsListBuffer]] = {
    "inplace": HipsBuffer,
    "out_of_place": HipsOutOfPlaceBuffer,
    "list": HipsListBuffer,
}
