"""The graph of one loss is retained for a second backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            loss = net(torch.randn(2, 4)).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()

    return note_of(train)
