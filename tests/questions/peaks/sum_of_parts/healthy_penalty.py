"""A penalty on the weights is added to the loss."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "sum of parts"


def case() -> ts.types.PeakReport:
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1))
    x = torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        penalty = sum((each.square().sum() for each in net.parameters()), torch.zeros(()))
        return net(x).square().mean() + 1e-4 * penalty

    return ts.profile(make_loss).peak()
