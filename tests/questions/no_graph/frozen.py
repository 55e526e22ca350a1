"""All parameters are frozen."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "Linear", "requires_grad_()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            net.requires_grad_(False)
            loss = net(torch.randn(3, 4)).square().mean()
            loss.backward()  # named

    return note_of(train)
