"""The scaler is disabled, so it steps an optimizer without gradients."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", enabled=False)

    def train() -> None:
        with ts.training(net, optimizer):
            net(torch.randn(3, 4)).square().mean()
            scaler.step(optimizer)
            scaler.update()

    return note_of(train)
