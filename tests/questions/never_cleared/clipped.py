"""Gradients are clipped in each step, which writes to them, and never cleared."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never cleared", ("weight", "optimizer.zero_grad()")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)

    def step(_: int) -> None:
        net(torch.randn(5, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return watched(net, optimizer, step)
