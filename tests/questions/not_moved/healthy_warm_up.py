"""The rate warms up from 0: the first steps move nothing, or hardly anything."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 1000))

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 8, dtype=torch.bfloat16)).sub(1).square().mean().backward()
        optimizer.step()
        scheduler.step()

    return watched(net, optimizer, step, 200)
