"""RMSprop is given an embedding with sparse gradients."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "sparse-gradient", ("0.weight", "RMSprop", "SparseAdam")


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))

    def train() -> None:
        with ts.training(net):
            optimizer = torch.optim.RMSprop(net.parameters())
            net(torch.tensor([1, 2])).sum().backward()
            optimizer.step()  # named

    return note_of(train)
