"""A saved tensor is overwritten; the user captures, then calls loss.backward() as always."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "modified-in-place", ("SigmoidBackward0", "gate", "clone()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.capture(net):
            gate = torch.sigmoid(net(torch.randn(3, 4)))
            gate.mul_(2.0)  # named
            gate.sum().backward()

    return note_of(train)
