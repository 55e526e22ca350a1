"""The optimizer is given the head only, and the body is not frozen."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("0.weight", "requires_grad_(False)", "optimizer.add_param_group")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net[1].parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step)
