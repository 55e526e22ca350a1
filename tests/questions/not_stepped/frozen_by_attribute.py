"""module.requires_grad = False sets an attribute that PyTorch does not read: the body is trained."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "requires_grad", ("0.requires_grad", "0.requires_grad_(False)")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net[0].requires_grad = False
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step)
