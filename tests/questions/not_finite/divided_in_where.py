"""A quotient by 0 that torch.where discards."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("divides by 0", "a / torch.where(mask, b, 1)")


def case() -> str:
    weight, count = nn.Parameter(torch.ones(4)), torch.tensor([2.0, 0.0, 1.0, 0.0])

    def make_loss() -> torch.Tensor:
        share = weight / (weight * count)  # named
        return torch.where(count > 0, share, torch.zeros(4)).sum()

    return not_finite(make_loss)
