"""The gradients are cleared between the backward and the scaler's step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "grad-scaler", ("weight", "SGD", "zero_grad()")


def case() -> str:
    net = nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")

    def train() -> None:
        with ts.training(net, optimizer):
            scaler.scale(net(torch.randn(3, 4)).square().mean()).backward()
            optimizer.zero_grad()
            scaler.step(optimizer)  # named

    return note_of(train)
