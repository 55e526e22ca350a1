"""A quantizer updates its codebook with an average that carries the graph."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("net.codebook", ".detach()", "quantizer_codebook.py")


class Quantizer(nn.Module):
    codebook: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 6)
        self.register_buffer("codebook", torch.randn(5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(x)
        nearest = torch.cdist(y, self.codebook.detach()).argmin(1)
        sums = torch.zeros(5, 6).index_add(0, nearest, y)
        self.codebook = 0.9 * self.codebook + 0.1 * sums
        return y - self.codebook.detach()[nearest]


def case() -> ts.types.Training:
    net = Quantizer()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
