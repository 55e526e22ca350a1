"""The bias before a batch norm has a gradient of rounding noise, which does not move it."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    net(torch.randn(2, 3, 6, 6))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(8, 3, 6, 6)), torch.randint(2, (8,))).backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
