"""A module keeps its hidden value as an attribute."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("held output", ("net.hidden",))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        self.hidden = y + 1  # named
        return y


def case() -> ts.types.PeakReport:
    net, x = Net(), torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        return net(x).square().mean()

    return ts.profile(make_loss).peak()
