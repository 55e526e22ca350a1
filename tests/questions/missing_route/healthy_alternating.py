"""Two heads are trained in turn, one in each step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.ModuleDict({"body": nn.Linear(4, 4), "even": nn.Linear(4, 1), "odd": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(number: int) -> None:
        optimizer.zero_grad()
        net["odd" if number % 2 else "even"](net["body"](torch.randn(3, 4))).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
