"""A gradient penalty is computed without create_graph."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "no-graph", ("loss", "create_graph=True")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            x = torch.randn(3, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x).sum(), x)  # named
            loss = (slope.norm(2, 1) - 1).square().mean()
            loss.backward()

    return note_of(train)
