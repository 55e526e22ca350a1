"""A layer is in a helper object that is not an nn.Module."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("helper.layer.weight", "Helper", "nn.Module")


class Helper:
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.helper = nn.Linear(4, 4), Helper()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.helper.layer(x))


def case() -> ts.types.Training:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step)
