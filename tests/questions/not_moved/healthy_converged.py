"""Plain regression converges: gradients shrink to rounding noise, and nothing moves any more."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1), torch.randn(32, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(x).sub(x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 400)
