"""SGD on float16 weights: each update is below half the distance of neighbouring values."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "float16", "SGD.step()")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1, bias=False).half()
    nn.init.ones_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), 1e-6)
    x = torch.randn(16, 8, dtype=torch.float16)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(x).float().square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
