"""Scores of all pairs are computed as a broadcast product and a sum."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = (
    "broadcast",
    (
        "96×96×64",
        "torch.einsum",
    ),
)


def case() -> ts.types.PeakReport:
    a, b = nn.Parameter(torch.randn(96, 64)), nn.Parameter(torch.randn(96, 64))

    def make_loss() -> torch.Tensor:
        return (a[:, None] * b[None]).sum(-1).softmax(-1).square().mean()  # named

    return ts.profile(make_loss).peak()
