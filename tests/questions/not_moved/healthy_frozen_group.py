"""One group's rate is 0 in the first phase."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    groups = [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[2].parameters()}]
    optimizer = torch.optim.SGD(groups, 1e-2)

    def step(number: int) -> None:
        if number == 30:
            optimizer.param_groups[0]["lr"] = 1e-2
        optimizer.zero_grad()
        net(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
