"""torch.func.grad of a function with several results."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("scalar", "jacrev")


def case() -> str:
    net = nn.Linear(4, 2)

    def compute() -> None:
        with ts.training(net):
            torch.func.grad(lambda x: net(x))(torch.randn(4))  # named

    return note_of(compute)
