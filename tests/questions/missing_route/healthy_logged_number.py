"""A module's result is logged as a number and used for the loss."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net, log = nn.ModuleDict({"gate": nn.Linear(4, 1), "body": nn.Linear(4, 1)}), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(3, 4)
        share = net["gate"](x).sigmoid()
        log.append(share.mean().item())
        (share * net["body"](x)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
