"""Whether two tensors of different runs are equal to the bit, without keeping either of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from ...inspector.torch_internals.modes import unobserved
from ...inspector.torch_internals.tensors import dense, parts_of

Print = tuple[int, ...]
"""64 bits of each tensor that a tensor's bytes are in; empty for those that show none."""

_CHUNK = 2**20  # elements that are looked at at once: 8 MiB of whole numbers
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# splitmix64's constants (Steele, Lea, Flood 2014), as signed numbers. Weights in a straight line would let two small
# changes cancel.
_STEP, _MIX = -7046029254386353131, -4658895280553007687


class BitPrints:
    """Takes prints where the tensors are. They are read after the run, of each device at once: no task waits for an
    accelerator."""

    def __init__(self) -> None:
        self._taken: dict[torch.device, list[Tensor]] = {}
        self._numbers: dict[torch.device, list[int]] = {}
        self._weights: dict[torch.device, Tensor] = {}

    def of(self, tensor: Tensor) -> Callable[[], Print]:
        """Takes it now; to be asked for after `read`."""
        places = []
        with unobserved():
            for values in _values(tensor):
                taken = self._taken.setdefault(values.device, [])
                places.append((values.device, len(taken)))
                taken.append(_print_of(values, self._weights_on(values.device)))
        return partial(self._print, places)

    def read(self) -> None:
        with unobserved():
            for device, taken in self._taken.items():
                self._numbers[device] = torch.stack(taken).tolist()
        self._taken.clear()
        self._weights.clear()

    def _weights_on(self, device: torch.device) -> Tensor:
        if device not in self._weights:
            self._weights[device] = _odd_numbers(device)
        return self._weights[device]

    def _print(self, places: Iterable[tuple[torch.device, int]]) -> Print:
        return tuple(self._numbers[device][place] for device, place in places)


def _values(tensor: Tensor) -> Iterable[Tensor]:
    for part in parts_of(tensor):
        if part.is_meta:
            continue
        if part.is_nested:
            yield from part.detach().unbind()
        else:
            yield part.int_repr() if part.is_quantized else dense(part.detach())


def _print_of(values: Tensor, weights: Tensor) -> Tensor:
    """Of all its bits, in their order: each element's, times a number of its own, summed up modulo 2^64."""
    values = values.resolve_conj().resolve_neg()
    if values.is_complex():
        values = torch.view_as_real(values)
    bits = values.contiguous().flatten().view(_INTEGERS[values.element_size()])
    found = torch.zeros((), dtype=torch.int64, device=values.device)
    for start in range(0, len(bits), _CHUNK):
        chunk = bits[start : start + _CHUNK]
        found = found * _STEP + (chunk.to(torch.int64) * weights[: len(chunk)]).sum()
    return found


def _odd_numbers(device: torch.device) -> Tensor:
    """Odd, so that no change of one element is lost."""
    numbers = torch.arange(1, _CHUNK + 1, dtype=torch.int64, device=device) * _STEP
    mixed = (numbers ^ (numbers >> 30)) * _MIX
    return (mixed ^ (mixed >> 31)) | 1
