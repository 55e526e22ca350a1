"""zero_grad(set_to_none=False) stands between backward and step: nothing ever moves, and no gradient is missing."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "cleared early", ("weight", "Adam.zero_grad()", "Adam.step()")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step(_: int) -> None:
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.zero_grad(set_to_none=False)  # named
        optimizer.step()  # named

    return watched(net, optimizer, step)
