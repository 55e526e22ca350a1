"""One of eight chunks is kept."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("held view", ("kept.part", ".clone()"))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)
    kept = SimpleNamespace()

    def make_loss() -> torch.Tensor:
        y = net(x)  # named
        kept.part = y.detach().chunk(8)[0]
        return y.mean()

    return ts.profile(make_loss).peak()
