"""Values are only local variables."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "held output"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        y = net(x)
        z = y + 1
        return y.square().mean() + z.mean()

    return ts.profile(make_loss).peak()
