"""What a training loop holds, by the addresses of its bytes: gradients, the optimizers' state, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...inspector.torch_internals.tensors import is_fake, parts_of, storage_of, stored_parts
from ..measuring.memory_watch import look, unseen
from .phases import BUFFERS, PARAMETERS

Walked = dict[str, list[int]]
"""By category the addresses of its storages."""


class Holders:
    """The modules and optimizers that were seen in a loop. They live no longer for being looked at.

    Args:
        device: whose memory; what is elsewhere is not walked.

    Attributes:
        nbytes: of each address that was walked the bytes of its storage, as they were when it was first met there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._optimizers: list[ref[Optimizer]] = []
        self.nbytes: dict[int, int] = {}

    def add_module(self, module: nn.Module) -> None:
        """Raises NotImplementedError if parameters of it are on another device."""
        if module in self._modules:
            return
        for name, each in module.named_parameters():
            if each.device != self._device:
                raise NotImplementedError(
                    f"{name} of {type(module).__name__} is on {each.device}, and whole steps are recorded on the "
                    f"{str(self._device).upper()} alone: th.profile(make_loss) measures a forward and a backward there"
                )
        self._modules.add(module)

    def add_optimizer(self, optimizer: Optimizer) -> None:
        if all(each() is not optimizer for each in self._optimizers):
            self._optimizers.append(ref(optimizer))

    @property
    def optimizers(self) -> list[Optimizer]:
        return [each for seen in self._optimizers if (each := seen()) is not None]

    def gradients(self) -> list[int]:
        """Where each parameter's .grad is."""
        with unseen():
            return [*self._addresses(each.grad for each in self._parameters())]

    def state(self) -> list[int]:
        """Where what the optimizers keep is."""
        with unseen():
            return [*self._addresses(leaf for each in self.optimizers for leaf in _tensors_in(each.state))]

    def parameters(self) -> Walked:
        """Where parameters and buffers are."""
        with unseen():
            buffers = (each for module in self._modules for each in module.buffers())
            return {PARAMETERS: [*self._addresses(self._parameters())], BUFFERS: [*self._addresses(buffers)]}

    def _parameters(self) -> Iterable[Tensor]:
        found: dict[int, Tensor] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                found.update((id(each), each) for each in group["params"])
        for module in self._modules:
            found.update((id(each), each) for each in module.parameters())
        return found.values()

    def _addresses(self, tensors: Iterable[Tensor | None]) -> Iterator[int]:
        for tensor in tensors:
            if tensor is None or is_fake(tensor):
                continue
            for part in _with_bytes(tensor):
                seen = look(part)
                if seen is not None and seen.address and part.device == self._device:
                    if seen.address not in self.nbytes:
                        storage = storage_of(part)
                        self.nbytes[seen.address] = seen.layout.nbytes if storage is None else storage.nbytes
                    yield seen.address


def _with_bytes(tensor: Tensor) -> Iterator[Tensor]:
    """The strided tensors of which it is made."""
    if tensor.layout is torch.sparse_coo:
        yield from stored_parts(tensor)
    else:
        yield from parts_of(tensor)


def _tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in dicts, lists and tuples."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, Mapping):
            todo.extend(each.values())
        elif isinstance(each, list | tuple):
            todo.extend(each)
