"""A clone is modified in place."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.capture(net):
            y = net(torch.randn(3, 4)).sigmoid()
            z = y.clone()
            z.mul_(2.0)
            (y + z).sum().backward()

    return note_of(train)
