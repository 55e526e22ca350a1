"""Gradients of HIPS autograd's as the engine carries them: tensors on numpy's own memory, with what they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...inspector.arguments import a_kind
from ...inspector.tapes.hips_nodes import arrays_in, is_container, is_sparse, metas_of, rebuilt, spaces_in

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
