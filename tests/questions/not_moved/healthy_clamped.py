"""A critic's weights are clamped after each step, and a layer's norm is kept at 1."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.RMSprop(net.parameters(), 5e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        (net(torch.randn(8, 8)).mean() - net(torch.randn(8, 8) + 1).mean()).backward()
        optimizer.step()
        for parameter in net.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        net[0].weight.data /= net[0].weight.data.norm()

    return watched(net, optimizer, step, 30)
