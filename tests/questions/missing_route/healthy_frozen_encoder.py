"""The encoder is frozen, runs under no_grad, and no optimizer holds it."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.ModuleDict({"encoder": nn.Linear(4, 4).requires_grad_(False), "head": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(net["head"].parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        with torch.no_grad():
            features = net["encoder"](torch.randn(3, 4))
        net["head"](features).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
