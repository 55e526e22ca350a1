"""load_state_dict(assign=True) after the optimizer was made: it holds parameters that the model no longer has."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("0.weight", "load_state_dict(assign=True)", "4 parameters", "the model no longer has")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
