"""Two optimizers of one step each run the backward of the same loss."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("loss", "retain_graph=True")


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            loss = net(torch.randn(2, 4)).square().sum()
            loss.backward()  # named
            loss.backward()

    return note_of(train)
