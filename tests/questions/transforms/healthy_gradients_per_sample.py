"""Gradients of each sample are computed and put into .grad by hand, with no backward."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-2), torch.randn(16, 4)

    def loss_of(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return functional_call(net, weights, (row[None],)).square().sum()

    def step(_: int) -> None:
        weights = {name: p.detach() for name, p in net.named_parameters()}
        for name, each in vmap(grad(loss_of), in_dims=(None, 0))(weights, x).items():
            net.get_parameter(name).grad = each.mean(0)
        optimizer.step()

    return watched(net, optimizer, step, 30)
