"""Experts are mixed by a broadcast product over all outputs."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = (
    "broadcast",
    (
        "256×32×64",
        "torch.einsum",
    ),
)


def case() -> ts.types.PeakReport:
    gates, outputs = nn.Parameter(torch.randn(256, 32, 1)), nn.Parameter(torch.randn(1, 32, 64))

    def make_loss() -> torch.Tensor:
        mixed = (gates * outputs).sum(1)  # named
        return mixed.tanh().square().mean()

    return ts.profile(make_loss).peak()
