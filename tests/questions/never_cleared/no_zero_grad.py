"""The loop never calls zero_grad: each step uses the sum of all gradients so far."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never cleared", ("0.weight", "AdamW.step()", "optimizer.zero_grad()")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    def step(_: int) -> None:
        net(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()  # named

    return watched(net, optimizer, step)
