"""The head is replaced after the optimizer was made: it never learns, and the old one is still held."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("1.weight", "1.bias", "optimizer.add_param_group", "2 parameters")
ALSO = ("without gradient",)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    net[1] = nn.Linear(5, 3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
