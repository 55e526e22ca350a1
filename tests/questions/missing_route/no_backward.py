"""The loop computes the loss and forgets its backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("No backward ran", "SGD")


def case() -> ts.types.Training:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        net(torch.randn(3, 4)).square().mean()
        optimizer.step()

    return watched(net, optimizer, step)
