"""The norm of several tensors at once, for each module, as numbers that come later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ...inspector.torch_internals.late import LateTensor
from ...inspector.torch_internals.tensors import Elements, computable, elements_of

_MOST_PLACES = 64
_NARROW = (torch.float16, torch.bfloat16)
_USUAL = (Tensor, Parameter)
_WITHOUT_DOUBLES = ("mps",)


class ColumnNorms(NamedTuple):
    """Norms of some columns.

    Attributes:
        columns: int64 on the CPU.
        norms: one for each.
    """

    columns: Tensor
    norms: LateTensor


class TakenNorms(NamedTuple):
    """Norms of the gradients that a backward left.

    Attributes:
        parameters: whose, by id.
        norms: by column.
    """

    parameters: frozenset[int]
    norms: list[ColumnNorms]


class NormSums:
    """Takes norms by column. It keeps where which tensor's norm belongs, since that is the same in each step.

    Attributes:
        unread: by column why a tensor of it could not be read.
    """

    def __init__(self) -> None:
        self.unread: dict[int, str] = {}
        self._places: dict[tuple[tuple[int, ...], torch.device], tuple[Tensor, Tensor]] = {}

    def take(self, tensors: Sequence[Tensor], columns: Sequence[int], scale: Tensor | None = None) -> list[ColumnNorms]:
        """The norm of all tensors of a column together; of a tensor in parts on several ranks that of this rank's part.

        Args:
            tensors: gradients or parameters, of any device, dtype and layout.
            columns: to which each belongs.
            scale: what the tensors were multiplied with.
        """
        groups: dict[tuple[int, torch.dtype], tuple[list[Tensor], list[int]]] = {}  # by device and dtype
        for tensor, column in zip(tensors, columns, strict=True):
            parts: Sequence[Tensor] = (tensor,)
            is_strided = tensor.layout is torch.strided and not tensor.is_meta
            if type(tensor) not in _USUAL or tensor.dtype is not torch.float32 or not is_strided:
                parts, unread = plain_elements(tensor)
                if unread:
                    self.unread[column] = unread
            for plain in parts:
                key = (plain.get_device(), plain.dtype)
                group = groups.get(key)
                if group is None:
                    group = groups[key] = ([], [])
                group[0].append(plain)
                group[1].append(column)
        by_device: dict[int, tuple[list[Tensor], list[int]]] = {}
        for (device, dtype), (found, places) in groups.items():
            norms, columns_there = by_device.setdefault(device, ([], []))
            norms.append(_norms_of(found, dtype))
            columns_there += places
        return [
            self._summed(torch.cat(norms) if len(norms) > 1 else norms[0], places, scale)
            for norms, places in by_device.values()
        ]

    def _summed(self, norms: Tensor, columns: list[int], scale: Tensor | None) -> ColumnNorms:
        key = (tuple(columns), norms.device)
        known = self._places.get(key)
        if known is None:
            if len(self._places) > _MOST_PLACES:
                self._places.clear()
            numbers, index = torch.unique(torch.tensor(columns, dtype=torch.int64, device="cpu"), return_inverse=True)
            known = self._places[key] = numbers, index.to(norms.device)
        numbers, index = known
        squares = norms.square_()
        sums = torch.zeros(numbers.numel(), dtype=norms.dtype, device=norms.device).index_add_(0, index, squares)
        sums.sqrt_()
        if scale is not None:
            sums /= scale.to(sums.device, sums.dtype, non_blocking=True)
        return ColumnNorms(numbers, LateTensor(sums.float()))


def _norms_of(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """One number each, so wide that its square is none that the tensors' own dtype would not hold."""
    wide = torch.float32 if dtype in _NARROW else None
    norms = torch._foreach_norm(tensors, 2, wide)
    together = torch.stack(norms)
    return together if together.device.type in _WITHOUT_DOUBLES else together.double()


def plain_elements(tensor: Tensor) -> Elements:
    """Return a tensor's elements as tensors whose norm can be taken, and why they cannot be read."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
    parts, unread = elements_of(tensor)
    found = map(computable, parts)
    return Elements(tuple(each for each in found if each.numel() and _has_norm(each)), unread)


def _has_norm(values: Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()
