"""Only the first of two optimizers clears its gradients."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never cleared", ("Sequential.0.weight", "Adam.step()", "optimizer.zero_grad()")


def case() -> ts.types.Training:
    body, head = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 1))
    first, second = torch.optim.SGD(body.parameters(), 1e-3), torch.optim.Adam(head.parameters(), 1e-3)

    def step(_: int) -> None:
        first.zero_grad()
        head(body(torch.randn(5, 6)).tanh()).square().mean().backward()
        first.step()
        second.step()

    return watched([body, head], [first, second], step)
