"""The optimizer steps after every second backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")

    def train() -> None:
        with ts.training(net, optimizer):
            for number in range(4):
                scaler.scale(net(torch.randn(3, 4)).square().mean() / 2).backward()
                if number % 2:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()

    return note_of(train)
