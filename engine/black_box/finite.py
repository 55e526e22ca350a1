"""Whether a loss and gradients are finite: at once, or on accelerators a step later, without waiting for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...inspector.torch_internals.late import LateTensor
from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.tensors import computable, elements_of

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Finiteness:
    """One number of each device, NaN or infinite if one element of these tensors is.

    It is a sum of norms, so very large elements make it infinite, too: `is_finite` tells.

    Args:
        tensors: which.
        norms: of others that are to be looked at, too.
    """

    def __init__(self, tensors: Sequence[Tensor], norms: Iterable[LateTensor] = ()) -> None:
        self._sums: list[LateTensor] = [*norms]
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        with unobserved():
            for each in tensors:
                plain = type(each) is Tensor and each.layout is torch.strided and each.dtype in _FLOATS
                for values in (each,) if plain else _values(each):
                    alike.setdefault((values.device, values.dtype), []).append(values)
            for (_, dtype), values_there in alike.items():
                summed = torch.float32 if dtype == torch.float16 else None  # whose squares end at 65,504
                self._sums.append(LateTensor(torch.stack(torch._foreach_norm(values_there, 2, summed)).sum()))

    @property
    def comes_later(self) -> bool:
        """Whether to look at it would mean to wait."""
        return any(each.comes_later for each in self._sums)

    def look(self) -> bool:
        """Whether all may be finite, waiting for it if need be."""
        return all(bool(each.read().isfinite().all()) for each in self._sums)


def is_finite(tensor: Tensor) -> bool:
    """Whether all its elements are; where there are none that can be looked at, True."""
    with unobserved():
        return all(bool(values.isfinite().all()) for values in _values(tensor))


def _values(tensor: Tensor) -> list[Tensor]:
    """The elements that can be looked at."""
    found = [computable(part) for part in elements_of(tensor.detach()).parts]
    return [each for each in found if each.numel() and (each.is_floating_point() or each.is_complex())]
