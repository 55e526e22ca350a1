"""Layers in a plain list are passed to the optimizer as well, and a list holds layers that are also registered."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.gate = nn.Linear(4, 4)
        self.layers_in_order = [self.gate]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(x) + self.experts[0](x) + self.experts[1](x)


def case() -> ts.types.Training:
    net = Mixture()
    parameters = [*net.parameters(), *(p for expert in net.experts for p in expert.parameters())]
    optimizer = torch.optim.SGD(parameters, 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step, 20)
