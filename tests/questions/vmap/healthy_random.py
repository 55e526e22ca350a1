"""Each sample has its own dropout."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def compute() -> None:
        with ts.training(net):
            torch.func.vmap(net, randomness="different")(torch.randn(3, 4)).sum().backward()

    return note_of(compute)
