"""A target is detached, and its network gets gradients from another term."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Twin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.head(self.encoder(x)) - self.encoder(y).detach()).square().mean()


def case() -> ts.types.Training:
    net = Twin()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4), torch.randn(3, 4)).backward()
        optimizer.step()

    return watched(net, optimizer, step)
