"""The losses of the samples are weighted and summed."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net, labels = nn.Linear(4, 2), torch.tensor([0, 1, 1])

    def train() -> None:
        with ts.training(net):
            losses = nn.functional.cross_entropy(net(torch.randn(3, 4)), labels, reduction="none")
            (losses * torch.tensor([0.2, 0.3, 0.5])).sum().backward()

    return note_of(train)
