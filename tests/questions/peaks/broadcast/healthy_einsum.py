"""Scores of all pairs as a matrix product."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "broadcast"


def case() -> ts.types.PeakReport:
    a, b = nn.Parameter(torch.randn(96, 64)), nn.Parameter(torch.randn(96, 64))

    def make_loss() -> torch.Tensor:
        return torch.einsum("ik,jk->ij", a, b).softmax(-1).square().mean()

    return ts.profile(make_loss).peak()
