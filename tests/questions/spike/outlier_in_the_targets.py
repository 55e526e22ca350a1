"""One target of 1e9 permanently saturates the units of a network."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "norm", ("step 40", "clip_grad_norm_")
ALSO = ("non-finite", "zero gradient")


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        x = torch.randn(8, 6)
        optimizer.zero_grad()
        net(x).sub(x.sum(1, keepdim=True) + (1e9 if number == 40 else 0)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 100)
