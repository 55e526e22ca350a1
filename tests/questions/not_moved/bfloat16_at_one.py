"""A norm's weights are 1.0 in bfloat16, where values are 0.008 apart: a rate of 1e-4 does not move them."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("1.weight", "bfloat16", "Adam.step()", "torch.autocast", "0.0001")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to(torch.bfloat16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    x = torch.randn(16, 8, dtype=torch.bfloat16)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(x).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
