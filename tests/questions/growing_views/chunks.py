"""One of many chunks of each step is kept."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("kept[0]", ".clone()")


def case() -> ts.types.Training:
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    kept: list[torch.Tensor] = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        y = net(torch.randn(2048, 64))
        y.square().mean().backward()
        optimizer.step()
        kept.append(y.detach().chunk(16)[3])

    return watched(net, optimizer, step, 20)
