"""The loss is mapped, and its backward runs outside."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 2)

    def compute() -> None:
        with ts.capture(net):
            losses = torch.func.vmap(lambda row: net(row).square().sum())(torch.randn(3, 4))
        ts.backward(losses.mean())

    return note_of(compute)
