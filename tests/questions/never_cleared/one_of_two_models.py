"""Two models share an optimizer, and only one of them is cleared."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never cleared", ("Linear.weight", "SGD.step()", "zero_grad()")


def case() -> ts.types.Training:
    encoder, head = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 1))
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 1e-3)

    def step(_: int) -> None:
        head.zero_grad()
        head(encoder(torch.randn(5, 6))).square().mean().backward()
        optimizer.step()

    return watched([encoder, head], optimizer, step)
