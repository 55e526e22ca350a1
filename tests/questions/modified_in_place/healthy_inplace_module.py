"""An in-place ReLU saves its result only."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))

    def train() -> None:
        with ts.capture(net):
            net(torch.randn(3, 4)).sum().backward()

    return note_of(train)
