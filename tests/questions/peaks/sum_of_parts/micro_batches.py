"""The losses of six micro-batches are summed before one backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("sum of parts", (6, "backward()"))


def case() -> ts.types.PeakReport:
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    batches = [torch.randn(512, 64) for _ in range(6)]

    def make_loss() -> torch.Tensor:
        losses = [net(x).square().mean() for x in batches]
        return torch.stack(losses).mean()

    return ts.profile(make_loss).peak()
