"""From step 30 on, a schedule sets a rate that bfloat16 weights do not feel."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "bfloat16", "SGD.step()")


def case() -> ts.types.Training:
    net = nn.Linear(8, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    x = torch.randn(16, 8, dtype=torch.bfloat16)

    def step(number: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-2 if number < 30 else 1e-5
        optimizer.zero_grad()
        net(x).sub(torch.randn(16, 1).to(torch.bfloat16) * 4).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 60)
