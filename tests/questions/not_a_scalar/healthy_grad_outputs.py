"""torch.autograd.grad gets the gradients of its outputs."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            x = torch.randn(3, 4, requires_grad=True)
            y = net(x)
            torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y))

    return note_of(train)
