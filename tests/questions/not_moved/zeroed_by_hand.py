"""Gradients are multiplied by zero between backward and step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "SGD.step()", "zero_grad()")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 8)).sub(1).square().mean().backward()
        for parameter in net.parameters():
            parameter.grad *= 0
        optimizer.step()

    return watched(net, optimizer, step, 12)
