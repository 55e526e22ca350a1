"""In step 6 a second optimizer is made for all parameters, and the first one keeps on stepping."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "stepped twice", ("weight", "RMSprop.step()", "SGD.step()")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(net.parameters(), 1e-3)]

    def step(number: int) -> None:
        if number == 6:
            optimizers.append(torch.optim.RMSprop(net.parameters(), 1e-3))
        for each in optimizers:
            each.zero_grad()
        net(torch.randn(5, 6)).square().mean().backward()
        for each in optimizers:
            each.step()

    return watched(net, None, step, 20)
