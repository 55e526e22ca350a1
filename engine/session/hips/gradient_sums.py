"""Gradients of HIPS autograd as the engine carries them, and how they are summed."""

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
"""What stands for the other arrays of a sparse gradient, of which the last carries all: going back, the buffer is as it
was before any of them."""


def carry(value: Any, shown: Tensor | None = None, is_sum: bool = False) -> Tensor:
    """A tensor that carries an array, a scalar or a sparse gradient through the engine.

    It is on the array's own memory, so that no bytes are copied. autograd goes on with the value itself.

    Args:
        shown: what is seen of it, where that is something else.
        is_sum: autograd made it by a sum, so that it adds to it in place.
    """
    tensor = _tensor_of(value) if shown is None else shown
    setattr(tensor, _VALUE, value)
    setattr(tensor, _IS_SUM, is_sum)
    return tensor


def value_of(tensor: Tensor) -> Any:
    """What a tensor carries; of one that a person put in its place, the array on its memory."""
    if hasattr(tensor, _VALUE):
        return getattr(tensor, _VALUE)
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def is_sum(tensor: Tensor) -> bool:
    """Whether more may be added in place to what it carries."""
    return getattr(tensor, _IS_SUM, False)


def carried(gradient: Any, space: Any, places: Sequence[int], is_read: bool) -> list[Tensor]:
    """A gradient for a value of this space: a tensor for each of these places in it.

    Args:
        is_read: whether anybody reads it here. Then what a sparse one adds is computed; else its shape alone is seen.

    Raises:
        TypeError: it is none.
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
        raise TypeError(f"a vjp gave {a_kind(gradient)} for the gradient of a container") from None
    return [carry(arrays[place]) for place in places] if arrays else [carry(np.zeros(0))]


def whole(space: Any, tensors: Sequence[Tensor | None]) -> Any:
    """The value of this space which these tensors carry; zeros for what did not come."""
    spaces = spaces_in(space)
    found = (
        each.zeros() if tensor is None else value_of(tensor) for each, tensor in zip(spaces, tensors, strict=False)
    )
    return rebuilt(space, found)


def flat(space: Any, value: Any) -> Tensor:
    """A value of this space as one tensor: an array's own memory; of a container all elements in a row."""
    tensors = [_tensor_of(array) for array in arrays_in(space, value)]
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if is_container(space) else tensors[0]


def _tensor_of(value: Any) -> Tensor:
    """The array as a tensor: on the same memory, but where torch can't have it so."""
    if not isinstance(value, np.ndarray | np.generic | int | float | complex):
        raise TypeError(f"a vjp gave {a_kind(value)} for a gradient; expected an array or a scalar")
    array = np.asarray(value)
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable:
        array = np.asarray(_Writeable(array))  # torch would warn; nobody writes
    return torch.from_numpy(array)


class _Writeable:
    """The memory of a read-only array, not marked as such."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


class HipsBuffer(InputBuffer):
    """The gradients that wait for one task, one for each array of its node's value.

    The first waits as it came. The second is summed with it into a new array, to which the next ones are added in
    place. That of an index adds to zeros of the full size, which become a sum. A sum that somebody else looks at is
    copied first.
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
        alone = self._alone(number)  # as long as no other name has it here
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
        """A sum. Added to in place, it is the same array, and the tensor on it stays."""
        waiting = self.gradients[number]
        if waiting is None or value_of(waiting) is not value:
            self.gradients[number] = carry(value, is_sum=True)

    def _alone(self, number: int) -> bool:
        """Whether nobody else holds what waits."""
        return owned_alone(self.gradients, number)


class HipsOutOfPlaceBuffer(HipsBuffer):
    """Each sum is a new array."""

    __slots__ = ()

    def _alone(self, number: int) -> bool:
        return False


class HipsListBuffer(ListBuffer):
    """All that comes waits, a sparse gradient as it is. When the task runs it is summed as above, by array.

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
