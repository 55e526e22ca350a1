"""What optimizers say of themselves: steps that a gradient scaler left out."""

from __future__ import annotations

from collections import Counter

from torch.optim import Optimizer

from ..words.phrases import counted
from .finding import Finding
from .part import LoopPart
from .record import Training


class SkippedSteps(LoopPart):
    """Counts the steps that a gradient scaler leaves out."""

    def __init__(self) -> None:
        self._skipped: Counter[str] = Counter()
        self._number = 0

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        name = type(optimizer).__name__
        self._skipped[name] += 1
        sentence = (
            f"{counted(self._skipped[name], 'step')} of {name} left out by the gradient scaler, as gradients were not "
            "finite: that is how it finds its scale as it begins; where it goes on, th.find_nan says where they begin."
        )
        self._training.update(Finding("skipped", self._number, sentence, tensor=name))
