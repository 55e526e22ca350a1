"""A step() of the user's own optimizer never applies its update: no rounding is to blame."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "not moved", ("weight", "Late.step()", "does not explain", "skips the update")


class Late(torch.optim.SGD):
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Wait for a warm-up that never ends."""


def case() -> ts.types.Training:
    net = nn.Linear(8, 1)
    optimizer = Late(net.parameters(), 1e-1)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(16, 8)).sub(1).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
