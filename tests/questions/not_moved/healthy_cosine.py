"""A cosine schedule ends at 0, so that the last steps move nothing."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 8)).sub(1).square().mean().backward()
        optimizer.step()
        scheduler.step()

    return watched(net, optimizer, step, 400)
