"""Only the head's gradients are clipped."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))

    def train() -> None:
        with ts.training(net):
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            net(torch.tensor([1, 2])).sum().backward()
            nn.utils.clip_grad_norm_(net[1].parameters(), 1.0)
            optimizer.step()

    return note_of(train)
