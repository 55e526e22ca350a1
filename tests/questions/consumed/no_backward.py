"""The loop never runs a backward: the optimizer steps without any gradient, and no hook takes one."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("SGD", "backward()")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean()
        optimizer.step()

    return watched(net, optimizer, step)
