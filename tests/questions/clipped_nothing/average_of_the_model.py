"""The parameters of the model's moving average are clipped, which get no gradient."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "clipped nothing", ("clip_grad_norm_()", "model.parameters()")


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        nn.utils.clip_grad_norm_(average.parameters(), 0.1)  # named
        optimizer.step()
        average.update_parameters(net)

    return watched(net, optimizer, step)
