"""An exponential schedule for epochs is stepped in each batch: after 60 steps the rate is 1e-61."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "SGD.step()", "scheduler.step()", "learning rate")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 8)).sub(1).square().mean().backward()
        optimizer.step()
        scheduler.step()

    return watched(net, optimizer, step, 60)
