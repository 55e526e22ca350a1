"""Tokens are routed to the two best of eight experts, and the others are not called."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weights[rows, places, None] * expert(x[rows]))
        return x + out


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = Mixture()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(3, 8)).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 80)
