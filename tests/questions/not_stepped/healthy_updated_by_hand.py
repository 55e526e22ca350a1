"""A scale is updated by hand, not by the optimizer."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.scale


def case() -> ts.types.Training:
    net = Scaled()
    optimizer = torch.optim.SGD(net.body.parameters(), 1e-2)

    def step(_: int) -> None:
        net.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            net.scale -= 1e-2 * net.scale.grad

    return watched(net, optimizer, step, 20)
