"""A module scales its weight in __init__."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "leaf-in-place", ("weight", "mul_", "torch.no_grad()")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.weight.mul_(0.02)  # named


def case() -> str:
    def train() -> None:
        with ts.capture():
            Scaled()

    return note_of(train)
