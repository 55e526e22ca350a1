"""The loss subtracts what it adds: the terms cancel, and the head's gradient is zero."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "zero gradient", ("1.weight", "cancel")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        hidden = net[0](torch.randn(4, 6))
        out = net[1](hidden).sum()
        (hidden.square().mean() + (out - out)).backward()
        optimizer.step()

    return watched(net, optimizer, step)
