"""Scores stay alive beside the masked and scaled ones."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("forward variable", ("scores", "del"))


def case() -> ts.types.PeakReport:
    x, w = torch.randn(512, 64), nn.Parameter(torch.randn(64, 64))
    mask = torch.zeros(512, 512)

    def make_loss() -> torch.Tensor:
        scores = x @ w @ x.t()  # named
        masked = scores + mask
        probabilities = masked.softmax(-1)
        return probabilities.square().mean()

    return ts.profile(make_loss).peak(phase="forward")
