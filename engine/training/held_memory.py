"""How many bytes a loop holds, by what they are for: looked at in few steps, as it takes a walk through the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.graph.marks import tensors_of
from ...inspector.torch_internals.saved import saved_slots
from ...inspector.torch_internals.sequence_numbers import youngest_first
from ...inspector.torch_internals.tensors import storage_of
from ..steps.loop_watch import BackwardGiven
from .forwards import roots_of
from .part import LoopPart

if TYPE_CHECKING:
    from .record import Training

HELD = ("parameters", "optimizer", "gradients", "activations", "earlier")
"""What a row of `Training.memory` has: parameters and buffers, the optimizers' state, gradients as a backward of the
step ends, what its largest graph has saved as its backward begins, and graphs of earlier steps that are alive."""

_PARAMETERS, _OPTIMIZER, _GRADIENTS, _ACTIVATIONS, _EARLIER = range(len(HELD))
_SELDOM = 10  # of the steps in which weights are looked at


class HeldMemory(LoopPart):
    """Sums storages, each once. Looked at are the steps 1, 2, 4, 8, ... and every hundredth (`every=10`); graphs of
    earlier steps wherever leaks were looked for. What operators need for themselves while they run is not in it.
    """

    def __init__(self) -> None:
        self._number = 0
        self._is_looking = False
        self._row = [0.0] * len(HELD)
        self._states: dict[int, int] = {}  # bytes by the optimizer's id, of those that step in this step

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number
        is_power = number & (number - 1) == 0
        self._is_looking = number > 0 and (is_power or number % (_SELDOM * self._training.every) == 0)
        if self._is_looking:
            self._row[_ACTIVATIONS] = self._row[_GRADIENTS] = 0.0
            self._states.clear()

    def backward_begins(self, given: BackwardGiven) -> None:
        if not self._is_looking:
            return
        watched = self._training.watched
        parameters = _storages(each for _, module in watched.modules() for each in _own_of(module))
        saved = (slot.tensor for _, node in youngest_first(roots_of(given[0])) for slot in saved_slots(node))
        activations = {address: nbytes for address, nbytes in _storages(saved).items() if address not in parameters}
        self._row[_PARAMETERS] = float(sum(parameters.values()))
        self._row[_ACTIVATIONS] = max(self._row[_ACTIVATIONS], float(sum(activations.values())))

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        if self._is_looking:
            found = _storages(each.grad for _, each in self._training.watched.parameters() if each.grad is not None)
            self._row[_GRADIENTS] = max(self._row[_GRADIENTS], float(sum(found.values())))

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        if self._is_looking:
            self._states[id(optimizer)] = sum(_storages(tensors_of(list(optimizer.state.values()))).values())
            self._row[_OPTIMIZER] = float(sum(self._states.values()))

    def step_ends(self, number: int) -> None:
        earlier = float(self._training.earlier_bytes)
        if self._is_looking or earlier != self._row[_EARLIER]:
            self._row[_EARLIER] = earlier
            self._training.memory.add([number], torch.tensor([self._row], dtype=torch.float32, device="cpu"))
        self._is_looking = False


def _own_of(module: torch.nn.Module) -> Iterable[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address, without what has none of its own."""
    found = (storage_of(each) for each in tensors)
    return {each.address: each.nbytes for each in found if each is not None}
