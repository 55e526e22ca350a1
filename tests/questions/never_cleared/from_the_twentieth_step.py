"""A phase of training forgets to clear gradients, from step 20 on."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never cleared", ("weight", "optimizer.zero_grad()")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(number: int) -> None:
        if number < 20:
            optimizer.zero_grad()
        net(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
