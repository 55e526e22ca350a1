"""A recurrent layer inside the model keeps its hidden state, and the best model is copied."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "deepcopy", ("tagger.hidden", "None")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.hidden = nn.GRU(4, 6), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.rnn(x)
        return y


def case() -> str:
    net = nn.ModuleDict({"tagger": Tagger(), "out": nn.Linear(6, 2)})

    def train() -> None:
        with ts.capture():
            net["out"](net["tagger"](torch.randn(3, 2, 4))).sum().backward()
            best = copy.deepcopy(net)  # named
            best.eval()

    return note_of(train)
