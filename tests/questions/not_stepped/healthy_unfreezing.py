"""Layers are unfrozen one after the other, and each is added to the optimizer."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))
    net[:3].requires_grad_(False)
    optimizer = torch.optim.Adam(net[3].parameters(), 1e-2)

    def step(number: int) -> None:
        if number in (10, 20, 30):
            layer = net[3 - number // 10].requires_grad_(True)
            optimizer.add_param_group({"params": layer.parameters()})
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 50)
