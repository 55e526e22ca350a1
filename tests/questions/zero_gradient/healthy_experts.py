"""A mixture of experts: some get no token now and then."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, number = torch.zeros_like(x), torch.randint(6, (len(x),))
        for place, expert in enumerate(self.experts):
            rows = (number == place).nonzero().flatten()
            out = out.index_add(0, rows, expert(x[rows]))
        return out


def case() -> ts.types.Training:
    net = Mixture()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 200)
