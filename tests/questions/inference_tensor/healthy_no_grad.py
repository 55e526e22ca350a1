"""The table was cached under no_grad."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 4)
    with torch.no_grad():
        table = torch.arange(4.0).cos()

    def train() -> None:
        with ts.training(net):
            (net(torch.randn(2, 4)) * table).sum().backward()

    return note_of(train)
