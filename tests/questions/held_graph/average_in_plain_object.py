"""A moving average of the weights is computed without torch.no_grad(), in an object that is not a module."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("average.shadow['0.weight']", ".detach()", "torch.no_grad()", "average_in_plain_object.py")


class Average:
    def __init__(self, net: nn.Module) -> None:
        self.shadow = {name: each.detach().clone() for name, each in net.named_parameters()}

    def update(self, net: nn.Module) -> None:
        for name, each in net.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * each


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    average = Average(net)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        average.update(net)

    return watched(net, optimizer, step)
