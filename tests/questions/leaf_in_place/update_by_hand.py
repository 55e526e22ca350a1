"""A gradient step by hand without no_grad."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "leaf-in-place", ("weight", "torch.no_grad()")


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).square().mean().backward()
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad  # named

    return note_of(train)
