"""The loss of each sample, for weights that are forgotten."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "not-a-scalar", ("loss", "(3,)", "loss.mean()")


def case() -> str:
    net, labels = nn.Linear(4, 2), torch.tensor([0, 1, 1])

    def train() -> None:
        with ts.training(net):
            loss = nn.functional.cross_entropy(net(torch.randn(3, 4)), labels, reduction="none")
            loss.backward()  # named

    return note_of(train)
