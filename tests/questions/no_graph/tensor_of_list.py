"""The losses of a batch are copied into a new tensor."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "torch.stack")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            losses = [net(torch.randn(4)).sum() for _ in range(3)]
            loss = torch.tensor(losses).mean()  # named
            loss.backward()

    return note_of(train)
