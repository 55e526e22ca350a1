"""Tensors as a folder keeps them: whole, by themselves, on the CPU; and what is said of each beside its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.tensors import computes_itself

_DTYPES = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.dtype) and found.itemsize and not str(found).startswith(("torch.q", "torch.bits"))
}
_MOST_DIMENSIONS = 64  # torch's own limit
_MOST = 2**53  # beyond that JSON's integers are none


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a tensor is besides its bytes. Strides are those of a tensor without gaps, in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str

    @classmethod
    def of(cls, tensor: Tensor, device: object) -> TensorFacts:
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), str(device))

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """`float32 64×32`."""
        return f"{name_of(self.dtype)} {'×'.join(map(str, self.shape)) or 'scalar'}"

    def as_json(self) -> dict[str, Any]:
        return {
            "dtype": name_of(self.dtype),
            "shape": list(self.shape),
            "strides": list(self.strides),
            "device": self.device,
        }

    @classmethod
    def read(cls, told: object) -> TensorFacts:
        """The same of JSON.

        Raises:
            ValueError: it is none, or no tensor without gaps can be so.
        """
        match told:
            case {"dtype": str(dtype), "shape": list(shape), "strides": list(strides), "device": str(device)}:
                if dtype not in _DTYPES:
                    raise ValueError(f"{dtype!r} is no dtype of a tensor that could be there")
                if not _are_sizes(shape) or not _are_sizes(strides) or not _is_dense(shape, strides):
                    raise ValueError(f"a tensor of shape {shape} can't have the strides {strides}")
                try:
                    torch.device(device)
                except RuntimeError:
                    raise ValueError(f"{device!r} is no device") from None
                return cls(_DTYPES[dtype], tuple(shape), tuple(strides), device)
        raise ValueError("what is said of a tensor is not its dtype, shape, strides and device")


def name_of(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")


def why_not_kept(tensor: Tensor) -> str:
    """Why a tensor can't be written as bytes, in words; "" where it can."""
    if is_lazy(tensor):
        return "not made yet, of a lazy module"
    if computes_itself(tensor):
        return f"a {type(tensor).__name__}, which has no bytes of its own"
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return f"{name_of(tensor.layout)}, not dense"  # type: ignore[arg-type]
    if tensor.device.type == "meta":
        return "on the meta device"
    return "" if name_of(tensor.dtype) in _DTYPES else "quantized"


def own_copy(tensor: Tensor, device: torch.device | str | None = None) -> Tensor:
    """Its elements in a storage that has no others, in the same order of dimensions: of a slice the slice alone."""
    with unobserved():
        plain = tensor.detach().resolve_conj().resolve_neg()
        copy = plain.clone(memory_format=torch.preserve_format)
        if not _is_dense(copy.shape, copy.stride()):
            copy = copy.contiguous()
        return copy if device is None else copy.to(device)


def _is_dense(shape: Any, strides: Any) -> bool:
    """Whether each element of the storage is one of the tensor's, once."""
    if len(shape) != len(strides) or len(shape) > _MOST_DIMENSIONS:
        return False
    if 0 in shape:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return expected < _MOST


def _are_sizes(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)
