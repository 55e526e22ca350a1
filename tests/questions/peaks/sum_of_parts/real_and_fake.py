"""A critic sees real and generated samples."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("sum of parts", (2, "backward()"))


def case() -> ts.types.PeakReport:
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    real, fake = torch.randn(512, 64), torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        return net(fake).mean() - net(real).mean()

    return ts.profile(make_loss).peak()
