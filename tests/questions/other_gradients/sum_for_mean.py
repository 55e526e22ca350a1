"""A sum over the batch stands in place of its mean."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import differences

FINDS, SAYS = "other gradients", ("16.0 times", "sum", "mean")


def case() -> str:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 6)
    return differences(lambda: net(x).square().mean(), lambda: net(x).square().sum())  # named
