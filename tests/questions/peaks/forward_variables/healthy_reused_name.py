"""The next value is assigned to the same name."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "forward variable"


def case() -> ts.types.PeakReport:
    net, head = nn.Linear(64, 512), nn.Linear(512, 512)
    x = torch.randn(256, 64)

    def make_loss() -> torch.Tensor:
        y = net(x)
        y = y.tanh()
        y = head(y)
        return y.square().mean()

    return ts.profile(make_loss).peak(phase="forward")
