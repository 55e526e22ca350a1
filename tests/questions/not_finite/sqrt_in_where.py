"""A square root at 0 that torch.where discards: its gradient is 0 * inf."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("sqrt", "torch.where", "torch.where(mask, x, 1).sqrt()")


def case() -> str:
    net, x = nn.Linear(4, 4, bias=False), torch.zeros(3, 4)

    def make_loss() -> torch.Tensor:
        y = net(x)
        root = y.sqrt()  # named
        return torch.where(y > 0, root, y).sum()

    return not_finite(make_loss)
