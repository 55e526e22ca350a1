"""A directional derivative by torch.func.jvp in each step."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import jvp

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "non-finite", ("NaN", "20")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-2), torch.randn(3, 4)

    def step(number: int) -> None:
        optimizer.zero_grad()
        out, change = jvp(net, (x,), (torch.ones_like(x),))
        ((out + change).square().mean() * (float("nan") if number == 20 else 1.0)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
