"""An input whose gradient is wanted is normalized in place."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "leaf-in-place", ("x", "compute a new tensor")


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            x = torch.randn(3, 4, requires_grad=True)
            x /= 2.0  # named
            net(x).sum().backward()

    return note_of(train)
