"""One batch has 10,000 times the usual norm, and is clipped."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        (net(torch.randn(8, 6)).sub(1).square().mean() * (1e7 if number == 40 else 1)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return watched(net, optimizer, step, 100)
