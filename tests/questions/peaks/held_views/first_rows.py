"""The first rows of large features are kept as a view."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("held view", ("kept[0]", ".clone()"))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)
    kept: list[torch.Tensor] = []

    def make_loss() -> torch.Tensor:
        y = net(x) + 1  # named
        kept[:] = [y.detach()[:2]]
        return y.mean()

    return ts.profile(make_loss).peak()
