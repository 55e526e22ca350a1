"""An inner step by torch.func.grad, and an outer backward through it."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, weights, (x,)).sub(1).square().mean()

    def step(_: int) -> None:
        weights = dict(net.named_parameters())
        inner = grad(loss_of)(weights, torch.randn(8, 4))
        fast = {name: each - 0.1 * inner[name] for name, each in weights.items()}
        optimizer.zero_grad()
        loss_of(fast, torch.randn(8, 4)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
