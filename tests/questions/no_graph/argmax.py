"""The accuracy is taken as the loss."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "argmax")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            y = net(torch.randn(3, 4))
            loss = (y.argmax(1) == torch.tensor([0, 1, 2])).float().mean()  # named
            loss.backward()

    return note_of(train)
