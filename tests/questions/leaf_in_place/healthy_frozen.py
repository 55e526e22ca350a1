"""A frozen embedding's row is set to zero."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4).requires_grad_(False), nn.Linear(4, 1))

    def train() -> None:
        with ts.training(net):
            net[0].weight[0] = 0.0
            net(torch.tensor([1, 2])).sum().backward()

    return note_of(train)
