"""Gradients of two losses are combined by hand: each is taken, then cleared, and the sum is put back."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        taken = []
        for part in net(torch.randn(5, 6)).square().mean(0):
            optimizer.zero_grad()
            part.backward(retain_graph=True)
            taken.append([parameter.grad.clone() for parameter in net.parameters()])
        optimizer.zero_grad()
        for parameter, one, other in zip(net.parameters(), *taken, strict=True):
            parameter.grad = one + 0.5 * other
        optimizer.step()

    return watched(net, optimizer, step, 12)
