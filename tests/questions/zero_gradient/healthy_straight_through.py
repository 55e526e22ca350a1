"""Weights are rounded with a straight-through estimator, and fake-quantized."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Quantized(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded = self.weight + ((self.weight * 10).round() / 10 - self.weight).detach()
        return nn.functional.linear(torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), rounded, self.bias)


def case() -> ts.types.Training:
    net = nn.Sequential(Quantized(6, 6), nn.Tanh(), Quantized(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 100)
