"""One parameter is in two optimizers, which both step after one backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "stepped twice", ("2.weight", "2.bias", "SGD.step()")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    whole, head = torch.optim.SGD(net.parameters(), 1e-3), torch.optim.SGD(net[2].parameters(), 1e-2)

    def step(_: int) -> None:
        whole.zero_grad()
        net(torch.randn(5, 6)).square().mean().backward()
        whole.step()  # named
        head.step()  # named

    return watched(net, [whole, head], step)
