"""Watch a small training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

import tapescope as ts


def watched(
    model: nn.Module | Sequence[nn.Module] | None,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    step: Callable[[int], Any],
    steps: int = 8,
) -> ts.types.Training:
    """Run `step(number)` so many times under `ts.training`, and return what it found."""
    with ts.training(model, optimizer) as training:
        for number in range(steps):
            step(number)
    return training
