"""SparseAdam is given the head as well."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "sparse-gradient", ("1.weight", "dense")


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1))

    def train() -> None:
        with ts.training(net):
            optimizer = torch.optim.SparseAdam(net.parameters())
            net(torch.tensor([1, 2])).sum().backward()
            optimizer.step()  # named

    return note_of(train)
