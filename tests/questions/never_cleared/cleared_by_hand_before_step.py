"""Gradients are set to None by hand between backward and step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "cleared early", ("weight", "zero_grad()")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        net(torch.randn(4, 8)).square().mean().backward()
        for parameter in net.parameters():
            parameter.grad = None
        optimizer.step()  # named

    return watched(net, optimizer, step)
