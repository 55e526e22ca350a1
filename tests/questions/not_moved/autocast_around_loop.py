"""One autocast around the whole loop: the cast weights are cached, and the loss never moves."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "stale cast", ("0.weight", "torch.autocast", "cache", "inside the loop")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-1), torch.randn(16, 8)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(x).float().square().mean().backward()
        optimizer.step()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        return watched(net, optimizer, step, 8)
