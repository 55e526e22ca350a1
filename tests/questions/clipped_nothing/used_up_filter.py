"""Values are clipped of a filter object that the first step has used up."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "clipped nothing", ("clip_grad_norm_()", "list(...)")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    trained = filter(lambda p: p.requires_grad, net.parameters())

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        clip_grad_norm_(trained, 0.1)  # named
        optimizer.step()

    return watched(net, optimizer, step)
