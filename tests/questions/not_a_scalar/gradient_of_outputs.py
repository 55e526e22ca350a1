"""torch.autograd.grad is called with an output of several elements."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "not-a-scalar", ("y", "(3, 1)", "grad_outputs=torch.ones_like(y)")


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            x = torch.randn(3, 4, requires_grad=True)
            y = net(x)
            torch.autograd.grad(y, x, create_graph=True)  # named

    return note_of(train)
