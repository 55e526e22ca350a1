"""Gradients of four batches are accumulated, and of the two that are left at the end of an epoch."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def epoch(_: int) -> None:
        for batch in range(10):
            (net(torch.randn(5, 6)).square().mean() / 4).backward()
            if batch % 4 == 3 or batch == 9:
                optimizer.step()
                optimizer.zero_grad()

    return watched(net, optimizer, epoch, 4)
