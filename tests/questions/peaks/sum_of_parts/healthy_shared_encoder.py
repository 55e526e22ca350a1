"""Two heads share an encoder."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "sum of parts"


def case() -> ts.types.PeakReport:
    encoder = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
    first, second, x = nn.Linear(512, 1), nn.Linear(512, 1), torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        y = encoder(x)
        return first(y).mean() + second(y).square().mean()

    return ts.profile(make_loss).peak()
