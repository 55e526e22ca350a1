"""Gradients are clipped before the backward, where there are none."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "clipped nothing", ("clip_grad_norm_()", "optimizer.step()")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)  # named
        net(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
