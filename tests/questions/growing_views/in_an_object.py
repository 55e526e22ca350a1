"""An object keeps one row of each step as a view."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("log.rows[0]", ".clone()")


def case() -> ts.types.Training:
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    log = SimpleNamespace(rows=[])

    def step(number: int) -> None:
        optimizer.zero_grad()
        y = net(torch.randn(2048, 64))
        y.square().mean().backward()
        optimizer.step()
        log.rows.append(y.detach()[-1])

    return watched(net, optimizer, step, 20)
