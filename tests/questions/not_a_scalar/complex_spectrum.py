"""A loss of a spectrum is complex."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "not-a-scalar", ("loss", "complex64", "loss.abs()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            loss = torch.fft.fft(net(torch.randn(4))).sum()
            loss.backward()  # named

    return note_of(train)
