"""One batch has 10,000 times the usual norm, and Adam comes back from it."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def step(number: int) -> None:
        optimizer.zero_grad()
        (net(torch.randn(8, 6)).sub(1).square().mean() * (1e7 if number == 40 else 1)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 100)
