"""A metric beside the loss uses argmax and item."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            y = net(torch.randn(3, 4))
            y.square().mean().backward()
            y.argmax(1).float().mean().item()

    return note_of(train)
