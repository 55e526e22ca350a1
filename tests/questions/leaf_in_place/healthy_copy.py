"""A copy of the input is modified in place."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            x = torch.randn(3, 4, requires_grad=True)
            scaled = x.clone()
            scaled /= 2.0
            net(scaled).sum().backward()

    return note_of(train)
