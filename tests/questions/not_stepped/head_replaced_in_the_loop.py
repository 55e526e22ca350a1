"""The head is replaced in step 10 of the loop."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("1.weight", "step 10", "optimizer.add_param_group")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step(number: int) -> None:
        if number == 10:
            net[1] = nn.Linear(5, 3)  # named
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 20)
