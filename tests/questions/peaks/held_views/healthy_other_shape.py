"""The whole value is kept in another shape."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "held view"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)
    kept: list[torch.Tensor] = []

    def make_loss() -> torch.Tensor:
        y = net(x) + 1
        kept[:] = [y.detach().view(-1)]
        return y.mean()

    return ts.profile(make_loss).peak()
