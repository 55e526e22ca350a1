"""Backwards through what was freed or written since: those that PyTorch refuses, and those that it should."""

from __future__ import annotations

from contextlib import ExitStack

from torch import nn
from torch.optim import Optimizer

from ...inspector.capturing.writes import WritesSeen, watching_unnoticed_writes
from ...inspector.torch_internals.compiled import watching_functions
from ..steps.loop_watch import BackwardGiven
from .forwards import Forwards, roots_of
from .part import LoopPart
from .record import Training
from .second_backward import SecondBackward
from .silent_writes import SilentWrites


class SpoiledBackwards(LoopPart):
    """Knows which graphs of the loop wait for their backward, by a mark at the results of its outermost modules."""

    def __init__(self) -> None:
        self._forwards = Forwards()
        self._step = 0
        self._silent: SilentWrites | None = None
        self._second: SecondBackward | None = None
        self._writes = ExitStack()

    def begins(self, training: Training) -> None:
        self._silent = SilentWrites(training, self._forwards)
        self._second = SecondBackward(training, self._forwards)
        self._writes.enter_context(watching_unnoticed_writes(self._silent.by_others))
        if training.writes:
            self._writes.enter_context(watching_functions(WritesSeen()))

    def step_begins(self, number: int) -> None:
        self._step = number
        if self._silent is not None:
            self._silent.by_others.step = number
        if self._second is not None:
            self._second.step_begins(number)

    def forward_begins(self, module: nn.Module, given: tuple[object, ...]) -> None:
        self._forwards.begins()

    def forward_ends(self, module: nn.Module, result: object) -> None:
        self._forwards.ends(module, result, self._step)
        if self._silent is not None:
            self._silent.by_others.forward_ends()

    def backward_begins(self, given: BackwardGiven) -> None:
        if self._silent is not None:
            self._silent.backward_begins(given, self._step)
        if self._second is not None:
            self._second.backward_begins(given, self._step)
        if not given[2]:  # retain_graph
            self._forwards.runs(roots_of(given[0]))

    def backward_ends(self, given: BackwardGiven, error: BaseException | None) -> None:
        if self._silent is not None:
            self._silent.backward_ends()
        if self._second is not None:
            self._second.backward_ends(given, error)

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        if self._silent is not None:
            self._silent.optimizer_begins(optimizer)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        if self._silent is not None:
            self._silent.optimizer_ends(optimizer, self._step)

    def ends(self) -> None:
        self._writes.close()
        self._silent = self._second = None
        self._forwards = Forwards()
