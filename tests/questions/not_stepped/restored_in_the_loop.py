"""A checkpoint is restored with assign=True in step 10."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("0.weight", "step 10", "load_state_dict(assign=True)")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        if number == 10:
            net.load_state_dict({name: each.clone() for name, each in net.state_dict().items()}, assign=True)  # named
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 20)
