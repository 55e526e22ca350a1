"""A slice of an activation is set to zero after it was used."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "modified-in-place", ("hidden", "clone()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            hidden = net(torch.randn(3, 4)).tanh()
            score = hidden.square().sum()
            hidden[:, 0] = 0.0  # named
            score.backward()

    return note_of(train)
