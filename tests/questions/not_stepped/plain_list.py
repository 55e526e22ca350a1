"""Layers are in a plain list: the optimizer never gets their parameters."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("experts[0].weight", "list", "nn.ModuleList", "optimizer")


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.gate = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.gate(x).softmax(-1)
        return torch.stack([weight[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]).sum(0)


def case() -> ts.types.Training:
    net = Mixture()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()

    return watched(net, optimizer, step)
