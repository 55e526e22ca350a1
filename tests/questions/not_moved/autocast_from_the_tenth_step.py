"""From step 10 on, one autocast stays open around all steps."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "stale cast", ("weight", "torch.autocast")


def case() -> ts.types.Training:
    net, stack = nn.Linear(8, 1), ExitStack()
    optimizer, x = torch.optim.SGD(net.parameters(), 1e-1), torch.randn(16, 8)

    def step(number: int) -> None:
        if number == 10:
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        optimizer.zero_grad()
        net(x).float().square().mean().backward()
        optimizer.step()

    with stack:
        return watched(net, optimizer, step, 50)
