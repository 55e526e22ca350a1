"""All parameters are clipped, although some of them are frozen in the first phase."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(number: int) -> None:
        if number == 8:
            net[0].requires_grad_(True)
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return watched(net, optimizer, step, 16)
