"""The view of the last step replaces the one before."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    kept: dict[str, torch.Tensor] = {}

    def step(number: int) -> None:
        optimizer.zero_grad()
        y = net(torch.randn(2048, 64))
        y.square().mean().backward()
        optimizer.step()
        kept["last"] = y.detach()[:4]

    return watched(net, optimizer, step, 20)
