"""A rate of 1e-12 is lost in float32 weights, from the first step on."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "AdamW.step()", "float32", "lr=")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-12)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 8)).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
