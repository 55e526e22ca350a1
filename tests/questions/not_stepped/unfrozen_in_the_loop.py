"""The body is unfrozen in step 10: it was left out when the optimizer was made."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("0.weight", "0.bias", "requires_grad=False", "optimizer.add_param_group")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    net[0].requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2)

    def step(number: int) -> None:
        if number == 10:
            net[0].requires_grad_(True)
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 20)
