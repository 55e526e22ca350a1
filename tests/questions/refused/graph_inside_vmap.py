"""A graph is read inside of vmap, which records none."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("torch.func", "vmap", "outside")


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)

    def loss_of(row: torch.Tensor) -> torch.Tensor:
        with ts.capture(net):
            loss = net(row).square().sum()
        ts.graph(loss)
        return loss

    return refused(lambda: torch.func.vmap(loss_of)(x))
