"""A target network's weights are averaged with assignments that keep the graph."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("target[0]", ".detach()", "torch.no_grad()", "target_network.py")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    target = [each.detach().clone() for each in net.parameters()]

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        for place, each in enumerate(net.parameters()):
            target[place] = torch.lerp(target[place], each, 0.05)

    return watched(net, optimizer, step)
