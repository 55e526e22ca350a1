"""What optimizers say of themselves: steps that a gradient scaler left out, and a learning rate that jumps."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from ..words.phrases import counted
from .finding import Finding
from .part import LoopPart
from .record import Training

_JUMP = 3.0  # a warm-up's second rate is twice its first; a restart goes where the rate has been before


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


class LearningRates(LoopPart):
    """Looks for a learning rate that jumps above all that it has been."""

    def __init__(self) -> None:
        self._highest: WeakKeyDictionary[Optimizer, list[float]] = WeakKeyDictionary()
        self._number = 0

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        rates = [_rate(group.get("lr")) for group in optimizer.param_groups]
        highest = self._highest.setdefault(optimizer, [])
        for place, rate in enumerate(rates):
            before = highest[place] if place < len(highest) else 0.0
            if 0.0 < before * _JUMP < rate:
                name = type(optimizer).__name__
                self._training.add(
                    Finding(
                        "learning rate",
                        self._number,
                        f"The learning rate of {name}'s group {place} has jumped to {rate:.3g}; it had been "
                        f"{before:.3g} at most. If that is not meant, look at the "
                        "scheduler, and how often its step() is called.",
                        tensor=f"{name}.param_groups[{place}]['lr']",
                    )
                )
        self._highest[optimizer] = [max(rate, *highest[place : place + 1], 0.0) for place, rate in enumerate(rates)]


def _rate(value: object) -> float:
    """0 of one that is on an accelerator: reading it would wait for that."""
    if isinstance(value, Tensor):
        return float(value.detach()) if value.device.type == "cpu" and value.numel() == 1 else 0.0
    return float(value) if isinstance(value, int | float) else 0.0
