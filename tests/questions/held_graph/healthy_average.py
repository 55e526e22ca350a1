"""A moving average of the weights under torch.no_grad()."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    average = [each.detach().clone() for each in net.parameters()]

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for place, each in enumerate(net.parameters()):
                average[place] = 0.9 * average[place] + 0.1 * each

    return watched(net, optimizer, step)
