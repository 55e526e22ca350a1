"""A census of storages: the bytes that tensors hold, by device and kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...inspector.torch_private.optimizer_steps import optimizers_alive, parameters_of
from ...inspector.torch_private.tensors import is_fake, storage_of, strided_parts

Place = tuple[torch.device, int]
"""A device, and an address that identifies a storage on it."""


class StorageCensus:
    """Storages by kind; each counts once, under the first kind with which it was added.

    Args:
        device: the only device to count; None for all devices.

    Attributes:
        storages: the kind and the bytes of each storage.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.storages: dict[Place, tuple[str, int]] = {}
        self._device = device

    def add(self, kind: str, tensors: Iterable[Tensor | None]) -> int:
        """Count the storages of these tensors that are not yet counted. Return their bytes."""
        added = 0
        for tensor in tensors:
            if tensor is None or (self._device is not None and tensor.device != self._device):
                continue
            for place, nbytes in storages_of([tensor]).items():
                if place not in self.storages:
                    self.storages[place] = kind, nbytes
                    added += nbytes
        return added

    def parts(self, device: torch.device | None = None) -> dict[str, int]:
        """Return the bytes of each kind that has any, on one device or on all, in the order in which kinds were
        added."""
        found: dict[str, int] = {}
        for (where, _), (kind, nbytes) in self.storages.items():
            if nbytes and device in (None, where):
                found[kind] = found.get(kind, 0) + nbytes
        return found


def storages_of(tensors: Iterable[Tensor | None]) -> dict[Place, int]:
    """Return the bytes of each storage of these tensors. Fake tensors have none; sparse tensors have several."""
    found: dict[Place, int] = {}
    for tensor in tensors:
        if tensor is None or is_lazy(tensor) or is_fake(tensor):
            continue
        for part in strided_parts(tensor):
            if (storage := storage_of(part)) is not None:
                found[part.device, storage.address] = storage.nbytes
    return found


def optimizers_of(tensors: Iterable[Tensor], optimizers: Iterable[Optimizer] | None = None) -> list[Optimizer]:
    """Return the optimizers, by default among all that are alive, that hold any of these tensors as a parameter."""
    known = set(map(id, tensors))
    optimizers = optimizers_alive() if optimizers is None else optimizers
    return [each for each in optimizers if not known.isdisjoint(map(id, parameters_of(each)))]


def state_tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the tensors that an optimizer keeps from step to step, in dicts, lists and tuples."""
    waiting: list[object] = [getattr(optimizer, "state", {})]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, Mapping):
            waiting.extend(list(each.values()))
        elif isinstance(each, list | tuple):
            waiting.extend(each)
