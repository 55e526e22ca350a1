"""A gradient scaler leaves out steps in which gradients were clipped."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

ALSO = ("skipped",)


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(8, 6)).square().mean() * (float("inf") if number in (3, 4, 5, 6) else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return watched(net, optimizer, step, 12)
