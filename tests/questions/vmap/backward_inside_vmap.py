"""ts.backward runs for each sample inside of vmap."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("ts.backward", "torch.func.grad")


def case() -> str:
    net = nn.Linear(4, 2)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().sum()
        ts.backward(loss, policy="bfs")  # named
        return loss

    return note_of(lambda: torch.func.vmap(loss_of)(torch.randn(3, 4)))
