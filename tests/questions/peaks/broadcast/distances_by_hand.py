"""Distances of all pairs are computed as a broadcast difference."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = (
    "broadcast",
    (
        "96×96×64",
        "torch.cdist",
    ),
)


def case() -> ts.types.PeakReport:
    a, b = nn.Parameter(torch.randn(96, 64)), nn.Parameter(torch.randn(96, 64))

    def make_loss() -> torch.Tensor:
        distances = (a[:, None] - b[None]).pow(2).sum(-1)  # named
        return distances.neg().softmax(-1).square().mean()

    return ts.profile(make_loss).peak()
