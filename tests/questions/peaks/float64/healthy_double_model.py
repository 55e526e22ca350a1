"""All parameters are float64."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "float64"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256).double(), torch.randn(512, 256).double()

    def make_loss() -> torch.Tensor:
        return net(x).tanh().square().mean()

    return ts.profile(make_loss).peak()
