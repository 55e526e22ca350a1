"""An auxiliary head is in the model and never called."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("aux.weight", "aux (Linear)", "not called")


def case() -> ts.types.Training:
    net = nn.ModuleDict({"body": nn.Linear(4, 1), "aux": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net["body"](torch.randn(3, 4)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
