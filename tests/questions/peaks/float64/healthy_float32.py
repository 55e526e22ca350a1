"""All is float32."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "float64"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256), torch.randn(512, 256)
    mean = torch.zeros(256)

    def make_loss() -> torch.Tensor:
        return (net(x) - mean).tanh().square().mean()

    return ts.profile(make_loss).peak()
