"""The last layer's gradients are set to None between backward and step in a first phase, as DINO does."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(number: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(5, 6)).square().mean().backward()
        if number < 10:
            net[2].weight.grad = None
        optimizer.step()

    return watched(net, optimizer, step, 20)
