"""A cross entropy whose target class is masked with -inf."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("cross_entropy", "class 2", "-inf")


def case() -> str:
    logits = nn.Parameter(torch.randn(3, 4))
    allowed, targets = torch.tensor([True, True, False, True]), torch.tensor([0, 2, 1])

    def make_loss() -> torch.Tensor:
        masked = logits.masked_fill(~allowed, float("-inf"))
        return nn.functional.cross_entropy(masked, targets)  # named

    return not_finite(make_loss)
