"""Autocast is opened anew for each forward, also for several batches of one step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-1), torch.randn(16, 8)

    def step(_: int) -> None:
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(x).float().square().mean()
            loss.backward()
        optimizer.step()

    return watched(net, optimizer, step, 50)
