"""create_graph=True, and each .grad is detached before the step."""

from __future__ import annotations

import gc

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Softplus(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward(create_graph=True)
        for each in net.parameters():
            each.grad = each.grad.detach()
        optimizer.step()

    gc.disable()
    try:
        return watched(net, optimizer, step)
    finally:
        gc.enable()
