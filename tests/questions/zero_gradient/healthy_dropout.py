"""Much dropout switches whole layers off in some steps, and less and less."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.9), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        net[1].p = max(0.0, 0.9 - number / 100)
        optimizer.zero_grad()
        net(torch.randn(1, 6)).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 120)
