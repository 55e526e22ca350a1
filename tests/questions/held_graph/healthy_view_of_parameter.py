"""Views of the parameters are made once, in the first step, and used by none."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    views: list[torch.Tensor] = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        if number == 0:
            views.extend(each.view(-1) for each in net.parameters())

    return watched(net, optimizer, step)
