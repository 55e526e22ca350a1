"""A term of the loss is computed once, before the loop."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("penalty", "before the loop", "in each step")


def case() -> str:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def train() -> None:
        penalty = net.weight.square().sum()  # named
        with ts.training(net, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                (net(torch.randn(8, 4)).square().mean() + 1e-3 * penalty).backward()
                optimizer.step()

    return note_of(train)
