"""A bias of -100 switches all units of a ReLU off."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "zero gradient", ("0.weight", "ReLU", "nn.LeakyReLU")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    nn.init.constant_(net[0].bias, -100.0)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 40)
