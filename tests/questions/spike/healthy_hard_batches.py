"""Every tenth batch is hard: its norm is 30 times the usual one."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)

    def step(number: int) -> None:
        optimizer.zero_grad()
        (net(torch.randn(8, 6)).sub(1).square().mean() * (30 if number % 10 == 0 else 1)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 120)
