"""The diagonal of a large matrix is kept."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("held view", ("kept[0]", ".clone()"))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 512), torch.randn(512, 64)
    kept: list[torch.Tensor] = []

    def make_loss() -> torch.Tensor:
        y = net(x)  # named
        kept[:] = [y.detach().diagonal()]
        return y.mean()

    return ts.profile(make_loss).peak()
