"""The loss is accumulated as a Python number."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "item()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            total = 0.0
            for _ in range(2):
                total += net(torch.randn(3, 4)).square().mean().item()  # named
            loss = torch.zeros((), requires_grad=False) + total
            loss.backward()

    return note_of(train)
