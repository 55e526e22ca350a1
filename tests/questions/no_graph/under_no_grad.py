"""The forward runs under no_grad, as in evaluation."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "no_grad()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            with torch.no_grad():  # named
                loss = net(torch.randn(3, 4)).square().mean()
            loss.backward()

    return note_of(train)
