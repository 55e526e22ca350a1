"""Two models have nothing in common but the loss."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("sum of parts", (2, "backward()"))


def case() -> ts.types.PeakReport:
    first = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    second = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    x = torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        return first(x).square().mean() + 0.5 * second(x).square().mean()

    return ts.profile(make_loss).peak()
