"""A module's forward returns detached features."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "detach()")


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).detach()  # named


def case() -> str:
    net = Encoder()

    def train() -> None:
        with ts.training(net):
            loss = net(torch.randn(3, 4)).square().mean()
            loss.backward()

    return note_of(train)
