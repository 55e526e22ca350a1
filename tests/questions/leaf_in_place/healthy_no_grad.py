"""A gradient step by hand under no_grad."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).square().mean().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None

    return note_of(train)
