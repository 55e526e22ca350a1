"""A Jacobian by torch.func of the model itself in each step."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import jacrev

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "non-finite", ("NaN", "20")
ALSO = ("without gradient",)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-2), torch.randn(4)

    def step(number: int) -> None:
        optimizer.zero_grad()
        penalty = jacrev(net)(x).square().sum()
        (penalty * (float("nan") if number == 20 else 1.0)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
