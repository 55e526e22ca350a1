"""Finds the storages held by a training loop: gradients, the optimizers' state, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from ...inspector.torch_private.tensors import (
    SPARSE,
    FollowedStorage,
    address_below,
    is_fake,
    local_of,
    storage_of,
    strided_parts,
    without_bytes,
)
from ...inspector.torch_private.thread_state import unobserved
from ..memory.categories import BUFFERS, PARAMETERS
from ..memory.census import Place, state_tensors
from ..memory.device_choice import measurable
from ..memory.task_boundaries import look

Walked = dict[str, list[Place]]
"""The places of storages by category."""


class Holders:
    """The modules and optimizers of a loop, held weakly.

    Attributes:
        nbytes: the bytes of the storage at each visited place, when it was first visited.
    """

    def __init__(self) -> None:
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._optimizers: list[ref[Optimizer]] = []
        self._have_new = False
        self.nbytes: dict[Place, int] = {}
        self._followed: dict[Place, FollowedStorage] = {}

    def add_module(self, module: nn.Module) -> None:
        """Add a module. Raises NotImplementedError if the memory of its parameters cannot be measured."""
        if module in self._modules:
            return
        known: set[torch.device] = set()
        with unobserved():
            for name, each in module.named_parameters():
                if is_fake(each):
                    raise NotImplementedError(
                        f"{name} of {type(module).__name__} is {without_bytes(each)}, so it has no memory to measure; "
                        "use ts.fits(...) to predict the step"
                    )
                if each.device not in known:
                    try:
                        known.add(measurable(each.device))
                    except ValueError as error:
                        raise NotImplementedError(
                            f"{name} of {type(module).__name__} is on {each.device}: {error}"
                        ) from None
        self._modules.add(module)
        self._have_new = True

    def add_optimizer(self, optimizer: Optimizer) -> None:
        if all(each() is not optimizer for each in self._optimizers):
            self._optimizers.append(ref(optimizer))
            self._have_new = True

    @property
    def devices(self) -> set[torch.device]:
        """The devices with a visited storage."""
        return {device for device, _ in self.nbytes}

    @property
    def optimizers(self) -> list[Optimizer]:
        return [each for seen in self._optimizers if (each := seen()) is not None]

    def ended(self) -> list[Place]:
        """Return the places of storages freed since the last call. An allocator does not report the end of those older
        than its recording; a `.grad` that is set to None may be a view of a buffer that stays."""
        gone = [place for place, followed in self._followed.items() if not followed.alive]
        for place in gone:
            del self._followed[place]
        return gone

    def gradients(self) -> list[Place]:
        """Return the place of each parameter's .grad."""
        with unobserved():
            return [*self._places(each.grad for each in self._parameters())]

    def state(self) -> list[Place]:
        """Return the places of the optimizers' state."""
        with unobserved():
            return [*self._places(leaf for each in self.optimizers for leaf in state_tensors(each))]

    def parameters(self) -> Walked:
        """Return the places of parameters and buffers."""
        with unobserved():
            buffers = (each for module in self._modules for each in module.buffers())
            return {PARAMETERS: [*self._places(self._parameters())], BUFFERS: [*self._places(buffers)]}

    def new_parameters(self) -> Walked:
        """Return `parameters()` if a module or optimizer was added since the last call; otherwise nothing."""
        if not self._have_new:
            return {}
        self._have_new = False
        return self.parameters()

    def _parameters(self) -> Iterable[Tensor]:
        found: dict[int, Tensor] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                found.update((id(each), each) for each in group["params"])
        for module in self._modules:
            found.update((id(each), each) for each in module.parameters())
        return found.values()

    def _places(self, tensors: Iterable[Tensor | None]) -> Iterator[Place]:
        for tensor in tensors:
            if tensor is None or is_fake(tensor):
                continue
            is_common = type(tensor) in _COMMON and tensor.layout not in SPARSE
            for part in (tensor,) if is_common else strided_parts(tensor):
                address = _address(part)
                if address:
                    place = part.device, address
                    if place not in self._followed:
                        self._follow(place, part)
                    yield place

    def _follow(self, place: Place, part: Tensor) -> None:
        storage = storage_of(part)
        self.nbytes.setdefault(place, part.nbytes if storage is None else storage.nbytes)
        if storage is not None:
            self._followed[place] = FollowedStorage(local_of(part))


_COMMON = Tensor, Parameter


def _address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's bytes, quickly for plain tensors, as each is looked up several times a step."""
    if type(tensor) in _COMMON and tensor.layout is torch.strided and not tensor.is_nested:
        return address_below(tensor)
    seen = look(tensor)
    return None if seen is None else seen.address
