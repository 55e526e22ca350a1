"""One of the optimizer's parameters is frozen, and the others have gradients."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1))
    optimizer, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu")

    def train() -> None:
        with ts.training(net, optimizer):
            scaler.scale(net(torch.randn(3, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    return note_of(train)
