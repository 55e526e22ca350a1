"""The weights are rounded to a grid after each step, which takes every update back."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "optimizer.step()", "w + (w.round() - w).detach()")


def case() -> ts.types.Training:
    net = nn.Linear(32, 4, bias=False)
    net.weight.data = (net.weight.data * 10).round() / 10
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        net.weight.data = (net.weight.data * 10).round() / 10

    return watched(net, optimizer, step)
