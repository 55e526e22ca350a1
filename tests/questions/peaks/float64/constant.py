"""A float64 constant makes all that follows float64."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("float64", ("dtype=torch.float32",))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256), torch.randn(512, 256)
    mean = torch.zeros(256, dtype=torch.float64)

    def make_loss() -> torch.Tensor:
        return (net(x) - mean).tanh().square().mean()  # named

    return ts.profile(make_loss).peak()
