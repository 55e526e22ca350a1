"""In step 6 a second optimizer takes over from the first one."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(net.parameters(), 1e-3)]

    def step(number: int) -> None:
        if number == 6:
            optimizers[0] = torch.optim.Adam(net.parameters(), 1e-3)
        optimizers[0].zero_grad()
        net(torch.randn(5, 6)).square().mean().backward()
        optimizers[0].step()

    return watched(net, None, step, 14)
