"""Gradients are cleared by hand, in each way in which that is done."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(number: int) -> None:
        for parameter in net.parameters():
            if number % 3 == 0 or parameter.grad is None:
                parameter.grad = None
            elif number % 3 == 1:
                parameter.grad.zero_()
            else:
                parameter.grad.data.zero_()
        net(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 20)
