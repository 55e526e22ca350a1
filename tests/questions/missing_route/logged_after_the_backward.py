"""A module is not called. Logging after the backward and gradients that are turned on explicitly cut nothing."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "without gradient", ("extra.weight", "extra (Linear)", "was not called")


def case() -> ts.types.Training:
    net = nn.ModuleDict({"body": nn.Linear(4, 1), "extra": nn.Linear(4, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    total = 0.0

    def step(_: int) -> None:
        nonlocal total
        optimizer.zero_grad()
        with torch.set_grad_enabled(True):
            loss = net["body"](torch.randn(1, 4)).square().mean()
            loss.backward()
            optimizer.step()
        total += loss.item()

    return watched(net, optimizer, step, 60)
