"""The target of the loss is detached."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            x = torch.randn(3, 4)
            (net(x) - net(x).detach().tanh()).square().mean().backward()

    return note_of(train)
