"""A loss of shape (1, 1) has one element."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            net(torch.randn(1, 4)).backward()

    return note_of(train)
