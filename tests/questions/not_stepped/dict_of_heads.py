"""Heads are in a plain dict of an inner module."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("1.heads['a'].weight", "dict", "nn.ModuleDict")


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = {"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads["a"](x) + self.heads["b"](x)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 4), Heads())
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step)
