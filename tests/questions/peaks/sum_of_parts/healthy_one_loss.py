"""One loss of one batch."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "sum of parts"


def case() -> ts.types.PeakReport:
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    x = torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        return net(x).square().mean()

    return ts.profile(make_loss).peak()
