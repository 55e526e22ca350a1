"""The head is replaced in step 10, and a new optimizer is made."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    optimizers = [torch.optim.Adam(net.parameters(), 1e-2)]

    def step(number: int) -> None:
        if number == 10:
            net[1] = nn.Linear(5, 3)
            optimizers[0] = torch.optim.Adam(net.parameters(), 1e-2)
        optimizers[0].zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizers[0].step()

    return watched(net, None, step, 30)
