"""Comparison of two backward passes: gradients bit for bit or closely, errors by type and message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a backward: the gradients of the leaves, or its error."""

    gradients: tuple[Tensor | None, ...] = ()
    error: str | None = None


def difference(found: Result, expected: Result, digits: float = 1) -> str | None:
    """Describe the first difference; None if there is none.

    Args:
        found, expected: ours and PyTorch's.
        digits: the share of a number's digits that must agree, counted from the gradient's largest value; 1 is for
            equal bit for bit, strides included.
    """
    if found.error != expected.error:
        return f"{found.error or 'no error'}; PyTorch: {expected.error or 'no error'}"
    for number, (one, other) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        differs = _differs(one, other, digits)
        if differs:
            return f"gradient {number}: {differs}"
    return None


def _differs(one: Tensor | None, other: Tensor | None, digits: float) -> str | None:
    if one is None or other is None:
        return None if one is other else f"{'None' if one is None else 'a tensor'}, not {_kind(other)}"
    if _kind(one) != _kind(other):
        return f"{_kind(one)}, not {_kind(other)}"
    if digits < 1:
        try:
            torch.testing.assert_close(one, other, equal_nan=True, **_tolerance(other, digits))
        except AssertionError as error:
            return " ".join(str(error).split())
        return None
    if _strides(one) != _strides(other):
        return f"strides {_strides(one)}, not {_strides(other)}"
    for mine, its in zip(_parts(one), _parts(other), strict=True):
        if mine.shape != its.shape:
            return f"{tuple(mine.shape)} entries, not {tuple(its.shape)}"
        unequal = _bits_differ(mine, its)
        if unequal.any():
            worst = (mine - its).abs().max()
            return f"{int(unequal.sum())} of {unequal.numel()} values differ, the most by {worst:.3g}"
    return None


def _tolerance(expected: Tensor, digits: float) -> dict[str, float]:
    """Absolute in units of the largest value: small values are what is left where large ones cancel."""
    values = _parts(expected)[-1].abs().nan_to_num(0, 0, 0)
    largest = float(values.max()) if values.numel() else 0.0
    relative = float(torch.finfo(expected.dtype).eps) ** digits
    return {"rtol": relative, "atol": relative * max(largest, 1.0)}


def _kind(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{tensor.dtype} {tensor.layout} {tuple(tensor.shape)}"


def _strides(tensor: Tensor) -> Sequence[int]:
    """Return the strides that matter: those of dimensions with several entries, in tensors with elements."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ()
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """A tensor's values, last, and what says where they are, if it is sparse."""
    tensor = tensor.detach()
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return (tensor._indices(), tensor._values())
    values = tensor.values().clone()  # as a view of a compressed tensor it has no view_as_real
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (tensor.crow_indices(), tensor.col_indices(), values)
    return (tensor.ccol_indices(), tensor.row_indices(), values)


def _bits_differ(one: Tensor, other: Tensor) -> Tensor:
    """Return where the bits of two tensors differ. All NaNs are equal; -0 and 0 are not."""
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    differs = one.ne(other) & ~(one.isnan() & other.isnan())
    if one.is_floating_point():
        differs |= one.signbit().ne(other.signbit()) & one.eq(0)
    return differs
