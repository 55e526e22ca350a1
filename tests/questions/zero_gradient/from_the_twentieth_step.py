"""From step 20 on, predictions are rounded, so one head gets a gradient of zeros."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "zero gradient", ("1.weight", "RoundBackward0", "20")
ALSO = ("norm",)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        hidden = net[0](torch.randn(4, 6))
        out = net[1](hidden.detach())
        (hidden.square().mean() + (out.square() if number < 20 else out.round()).mean()).backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
