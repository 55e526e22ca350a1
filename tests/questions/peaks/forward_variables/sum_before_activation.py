"""A sum stays alive in a variable through two large layers."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("forward variable", ("total", "del"))


def case() -> ts.types.PeakReport:
    first, second = nn.Linear(64, 1024), nn.Linear(1024, 1024)
    x, bias = torch.randn(256, 64), nn.Parameter(torch.zeros(1024))

    def make_loss() -> torch.Tensor:
        total = first(x) + bias  # named
        y = total.tanh()
        return second(y).tanh().square().mean()

    return ts.profile(make_loss).peak(phase="forward")
