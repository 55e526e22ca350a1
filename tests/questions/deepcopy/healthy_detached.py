"""A module keeps its latest features without their graph."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        self.features = y.detach()
        return y.relu()


def case() -> str:
    net = Encoder()

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).sum().backward()
            copy.deepcopy(net)

    return note_of(train)
