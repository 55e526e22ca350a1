"""The angle between a vector and itself: acos at 1."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("acos", "1 and -1", "x.clamp(-1 + eps, 1 - eps)")


def case() -> str:
    direction = nn.Parameter(torch.tensor([1.0, 0.0]))

    def make_loss() -> torch.Tensor:
        cosine = (direction * torch.tensor([1.0, 0.0])).sum()
        return torch.acos(cosine)  # named

    return not_finite(make_loss)
