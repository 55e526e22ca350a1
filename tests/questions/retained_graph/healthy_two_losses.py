"""Two losses share a forward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        first, second = net(torch.randn(4, 6)).unbind(1)
        first.mean().backward(retain_graph=True)
        second.square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
