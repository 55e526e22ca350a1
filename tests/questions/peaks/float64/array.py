"""A NumPy array is float64 by default."""

from __future__ import annotations

import numpy
import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("float64", ("dtype=torch.float32",))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(256, 256), torch.randn(512, 256)
    scale = torch.from_numpy(numpy.ones(256))

    def make_loss() -> torch.Tensor:
        return (net(x) * scale).tanh().square().mean()  # named

    return ts.profile(make_loss).peak()
