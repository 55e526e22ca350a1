"""The loop takes the weights' gradients and updates them; the biases are forgotten."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("0.bias", "2.bias")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    scale = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([scale], 1e-2)

    def step(_: int) -> None:
        (scale * net(torch.randn(4, 6))).square().mean().backward()
        with torch.no_grad():
            for layer in (net[0], net[2]):
                layer.weight -= 1e-2 * layer.weight.grad
                layer.weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
        net.zero_grad()

    return watched(net, optimizer, step, 12)
