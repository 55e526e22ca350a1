"""The backward is limited to some of the parameters."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("0.weight", "contains", "the backward gave no gradient")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().mean().backward(inputs=list(net[1].parameters()))
        optimizer.step()

    return watched(net, optimizer, step)
