"""Two optimizers hold different parameters and step after one backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizers = [torch.optim.SGD(net[0].parameters(), 1e-3), torch.optim.Adam(net[2].parameters(), 1e-3)]

    def step(_: int) -> None:
        net.zero_grad()
        net(torch.randn(5, 6)).square().mean().backward()
        for each in optimizers:
            each.step()

    return watched(net, optimizers, step, 12)
