"""torch.where also replaces the input before the square root."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite


def case() -> str:
    net, x = nn.Linear(4, 4, bias=False), torch.zeros(3, 4)

    def make_loss() -> torch.Tensor:
        y = net(x)
        return torch.where(y > 0, torch.where(y > 0, y, 1.0).sqrt(), y).sum()

    return not_finite(make_loss)
