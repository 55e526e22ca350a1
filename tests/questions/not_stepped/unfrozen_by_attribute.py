"""module.requires_grad = True in step 10 does not unfreeze the body."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "requires_grad", ("0.requires_grad", "0.requires_grad_(True)")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        if number == 10:
            net[0].requires_grad = True
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
