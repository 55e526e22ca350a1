"""The gradient passed to the backward has another shape than the output."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "not-a-scalar", ("y", "(3, 2)", "torch.ones_like(y)")


def case() -> str:
    net = nn.Linear(4, 2)

    def train() -> None:
        with ts.training(net):
            y = net(torch.randn(3, 4))
            y.backward(torch.ones(3))  # named

    return note_of(train)
