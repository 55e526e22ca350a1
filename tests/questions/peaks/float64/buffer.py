"""A buffer of statistics is float64."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("float64", ("dtype=torch.float32",))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256), torch.randn(512, 256)
    stats = nn.Module()
    stats.register_buffer("std", torch.ones(256, dtype=torch.float64))

    def make_loss() -> torch.Tensor:
        return (net(x) / stats.std).tanh().square().mean()  # named

    return ts.profile(make_loss).peak()
