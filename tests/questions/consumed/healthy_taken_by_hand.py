"""The loop takes the gradients itself, updates the parameters, and an optimizer steps a part that it left."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        with torch.no_grad():
            for parameter in net[0].parameters():
                parameter -= 1e-2 * parameter.grad
                parameter.grad = None
        optimizer.step()

    return watched(net, optimizer, step, 12)
