"""The encoder's features are detached in the model's forward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("encoder.weight", "encoder (Linear)", "probably", ".detach()")


class Probe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x).relu()
        return self.head(features.detach())  # named


def case() -> ts.types.Training:
    net = Probe()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
