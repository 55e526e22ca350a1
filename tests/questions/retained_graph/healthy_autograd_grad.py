"""torch.autograd.grad uses the graph once more."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(4, 6, requires_grad=True)
        loss = net(x).square().mean()
        loss.backward(retain_graph=True)
        assert torch.autograd.grad(loss, x)[0].isfinite().all()
        optimizer.step()

    return watched(net, optimizer, step)
