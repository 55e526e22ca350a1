"""A mask selects some tokens, and a metric uses argmax beside the loss."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused


def case() -> str:
    net = nn.Linear(4, 3)

    def make_loss() -> torch.Tensor:
        y = net(torch.randn(5, 4))
        assert y.argmax(1).float().mean().item() >= 0
        return y[torch.arange(5) > 2].square().sum()

    return unused(make_loss, net)
