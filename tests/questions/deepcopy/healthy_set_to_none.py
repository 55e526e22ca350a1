"""The hidden state is set to None before the model is copied."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.hidden = nn.GRU(4, 6), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.rnn(x)
        return y


def case() -> str:
    net = Tagger()

    def train() -> None:
        with ts.capture():
            net(torch.randn(3, 2, 4)).sum().backward()
            net.hidden = None
            copy.deepcopy(net)

    return note_of(train)
