"""Scale, backward, unscale, clip, step, update."""

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
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale(net(torch.randn(3, 4)).square().mean()).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()

    return note_of(train)
