"""Two optimizers hold a shared body, and each steps after a separate backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    body, heads = nn.Linear(6, 6), nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    optimizers = [torch.optim.SGD([*body.parameters(), *head.parameters()], 1e-3) for head in heads]

    def step(_: int) -> None:
        for head, optimizer in zip(heads, optimizers, strict=True):
            optimizer.zero_grad()
            head(body(torch.randn(5, 6)).tanh()).square().mean().backward()
            optimizer.step()

    return watched([body, heads], optimizers, step, 12)
