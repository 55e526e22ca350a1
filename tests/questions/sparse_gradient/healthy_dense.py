"""The embedding's gradients are dense."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1))

    def train() -> None:
        with ts.training(net):
            optimizer = torch.optim.Adam(net.parameters(), weight_decay=0.01)
            net(torch.tensor([1, 2])).sum().backward()
            optimizer.step()

    return note_of(train)
