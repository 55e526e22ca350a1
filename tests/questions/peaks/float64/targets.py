"""Targets are float64."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("float64", ("dtype=torch.float32",))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256), torch.randn(512, 256)
    targets = torch.zeros(512, 256).double()

    def make_loss() -> torch.Tensor:
        return (net(x) - targets).square().mean()  # named

    return ts.profile(make_loss).peak()
