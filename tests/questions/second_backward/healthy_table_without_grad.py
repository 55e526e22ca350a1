"""A cached table is computed under no_grad."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.table = nn.Parameter(torch.ones(4)), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            with torch.no_grad():
                self.table = torch.arange(4.0).exp()
        return x * self.table * self.scale


def case() -> str:
    net = Positions()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def train() -> None:
        with ts.training(net, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(2, 4)).square().mean().backward()
                optimizer.step()

    return note_of(train)
