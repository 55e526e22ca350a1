"""The optimizer holds the parameters of the model as it was before it was replaced."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "grad-scaler", ("weight", "Adam", "does not hold", "model.parameters()")


def case() -> str:
    optimizer = torch.optim.Adam(nn.Linear(4, 1).parameters())
    net, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")

    def train() -> None:
        with ts.training(net):
            scaler.scale(net(torch.randn(3, 4)).square().mean()).backward()
            scaler.step(optimizer)  # named

    return note_of(train)
