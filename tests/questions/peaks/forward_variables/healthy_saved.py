"""All variables are saved for backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "forward variable"


def case() -> ts.types.PeakReport:
    net = nn.Linear(64, 512)
    x = torch.randn(256, 64)

    def make_loss() -> torch.Tensor:
        y = net(x)
        z = y.square()
        return (z * y).mean()

    return ts.profile(make_loss).peak(phase="forward")
