"""A new generator is clipped in each step, also one that is filtered."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(number: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_((p for p in net.parameters() if p.grad is not None), 0.1)
        nn.utils.clip_grad_value_(net.parameters(), 0.01)
        optimizer.step()

    return watched(net, optimizer, step, 12)
