"""SGD decays the weights of an embedding with sparse gradients."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "sparse-gradient", ("0.weight", "weight_decay=0")


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))

    def train() -> None:
        with ts.training(net):
            optimizer = torch.optim.SGD(net.parameters(), 0.1, weight_decay=0.01)
            net(torch.tensor([1, 2])).sum().backward()
            optimizer.step()  # named

    return note_of(train)
