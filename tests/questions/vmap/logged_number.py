"""The function logs a number of its sample."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("item()", "in_dims=None")


def case() -> str:
    net, log = nn.Linear(4, 1), []

    def loss_of(row: torch.Tensor) -> torch.Tensor:
        loss = net(row).square().sum()
        log.append(loss.item())  # named
        return loss

    def compute() -> None:
        with ts.training(net):
            torch.func.vmap(loss_of)(torch.randn(3, 4))

    return note_of(compute)
