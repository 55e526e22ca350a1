"""The parameters of a former model are clipped, those of the trained one are not."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "clipped nothing", ("clip_grad_norm_()", "model.parameters()")


def case() -> ts.types.Training:
    net, former = nn.Linear(6, 1), nn.Linear(6, 1)
    former(torch.randn(2, 6)).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(former.parameters(), 0.1)  # named
        optimizer.step()

    return watched(net, optimizer, step)
