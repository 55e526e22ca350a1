"""The body, which the optimizer holds, is frozen in every second phase of ten steps."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step(number: int) -> None:
        net[0].requires_grad_(number // 10 % 2 == 0)
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
