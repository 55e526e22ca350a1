"""A second loss has weight 0 in the first 100 steps: it is switched on later."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        hidden = net[0](torch.randn(4, 6))
        (hidden.square().mean() + (number > 100) * net[1](hidden.detach()).square().mean()).backward()
        optimizer.step()

    return watched(net, optimizer, step, 150)
