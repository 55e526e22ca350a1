"""A margin loss is satisfied after some steps: the loss is zero, and so is every gradient."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    net, target = nn.Linear(6, 1), x[:, :1].sign()
    optimizer = torch.optim.SGD(net.parameters(), 0.3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        (1 - target * net(x)).clamp(min=0).mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 400)
