"""Gradients of each sample by torch.func in the loop: the watching goes on, and a NaN is seen."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "non-finite", ("NaN", "20")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-2), torch.randn(16, 4)

    def loss_of(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return functional_call(net, weights, (row[None],)).square().sum()

    def step(number: int) -> None:
        weights = {name: p.detach() for name, p in net.named_parameters()}
        vmap(grad(loss_of), in_dims=(None, 0))(weights, x)
        optimizer.zero_grad()
        (net(x).square().mean() * (float("nan") if number == 20 else 1.0)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
