"""A view is kept beside the whole value."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "held view"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)
    kept: list[torch.Tensor] = []

    def make_loss() -> torch.Tensor:
        y = (net(x) + 1).detach().requires_grad_()
        kept[:] = [y, y.detach()[:2]]
        return (y * 2).mean()

    return ts.profile(make_loss).peak()
