"""One batch overflows float16, and a gradient scaler leaves the step out."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

ALSO = ("skipped",)


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer, scaler = torch.optim.SGD(net.parameters(), 1e-2), torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(8, 6)).sub(1).square().mean() * (float("inf") if number == 40 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return watched(net, optimizer, step, 100)
