"""A mean over targets that are all ignored."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("ignore_index", "sum")


def case() -> str:
    logits, targets = nn.Parameter(torch.randn(3, 4)), torch.full((3,), -100)

    def make_loss() -> torch.Tensor:
        return nn.functional.cross_entropy(logits, targets)  # named

    return not_finite(make_loss)
