"""retain_graph=True for the only backward of a step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "retained graph", ("remove retain_graph=True",)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward(retain_graph=True)  # named
        optimizer.step()

    return watched(net, optimizer, step)
