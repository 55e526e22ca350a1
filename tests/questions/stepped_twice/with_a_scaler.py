"""A gradient scaler steps two optimizers that share the body."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "stepped twice", ("0.weight", "SGD.step()")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizers = [torch.optim.SGD(net.parameters(), 1e-3), torch.optim.SGD(net[0].parameters(), 1e-3)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(_: int) -> None:
        net.zero_grad()
        scaler.scale(net(torch.randn(5, 6)).square().mean()).backward()
        scaler.step(optimizers[0])
        scaler.step(optimizers[1])
        scaler.update()

    return watched(net, optimizers, step)
