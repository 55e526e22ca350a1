"""The loop converts a gate's result to a number."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("gate.weight", "gate (Linear)", "probably", ".item()")


def case() -> ts.types.Training:
    net = nn.ModuleDict({"gate": nn.Linear(4, 1), "body": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(1, 4)
        share = net["gate"](x).sigmoid().item()  # named
        (share * net["body"](x)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
