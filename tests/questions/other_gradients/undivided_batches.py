"""The loss of four batches is not divided by four."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import differences

FINDS, SAYS = "other gradients", ("4.0 times", "everywhere below the loss", "divide the loss")


def case() -> str:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 6)
    return differences(lambda: net(x).square().mean(), lambda: 4 * net(x).square().mean())  # named
