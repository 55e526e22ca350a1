"""A branch ends in a layer of zeros and is multiplied by a gate that is also zero."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "zero gradient", ("1.gate", "1.last.weight", "torch.nn.init")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.last = nn.Parameter(torch.zeros(6)), nn.Linear(6, 6)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate * self.last(x)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), Block(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
