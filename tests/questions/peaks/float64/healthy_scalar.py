"""A Python number and a float64 tensor without dimensions do not change the dtype."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "float64"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256), torch.randn(512, 256)
    scale = torch.tensor(2.0, dtype=torch.float64)

    def make_loss() -> torch.Tensor:
        return (net(x) * scale * 0.5).tanh().square().mean()

    return ts.profile(make_loss).peak()
