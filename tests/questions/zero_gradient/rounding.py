"""Weights are rounded in the forward, without a straight-through estimator."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "zero gradient", ("0.weight", "RoundBackward0", "(x.round() - x).detach()")


class Quantized(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 0.1
        return nn.functional.linear(x, (self.weight / scale).round() * scale, self.bias)  # named


def case() -> ts.types.Training:
    net = nn.Sequential(Quantized(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
