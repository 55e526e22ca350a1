"""LBFGS clears gradients and runs the backward in its closure."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer, x = torch.optim.LBFGS(net.parameters(), 1e-2, max_iter=3), torch.randn(5, 6)

    def loss():
        optimizer.zero_grad()
        value = net(x).square().mean()
        value.backward()
        return value

    return watched(net, optimizer, lambda _: optimizer.step(loss), 6)
