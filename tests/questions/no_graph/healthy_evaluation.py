"""An evaluation under no_grad follows the backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).square().mean().backward()
            with torch.no_grad():
                net(torch.randn(3, 4)).sum()

    return note_of(train)
