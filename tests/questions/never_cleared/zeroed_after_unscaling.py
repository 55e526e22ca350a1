"""With a gradient scaler, zero_grad() stands between unscale_() and step()."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "cleared early", ("weight", "SGD.zero_grad()", "SGD.step()")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu")

    def step(_: int) -> None:
        scaler.scale(net(torch.randn(4, 8)).square().mean()).backward()
        scaler.unscale_(optimizer)
        optimizer.zero_grad(set_to_none=False)
        scaler.step(optimizer)
        scaler.update()

    return watched(net, optimizer, step)
