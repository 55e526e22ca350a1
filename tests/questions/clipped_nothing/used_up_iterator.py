"""Clipping is given an iterator that the optimizer has used up: nothing is ever clipped."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "clipped nothing", ("clip_grad_norm_()", "list(...)")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    trained = (p for p in net.parameters() if p.requires_grad)
    optimizer = torch.optim.SGD(trained, 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(trained, 0.1)  # named
        optimizer.step()

    return watched(net, optimizer, step)
