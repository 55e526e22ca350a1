"""A model with dropout is mapped over its samples."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("randomness='different'",)


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def compute() -> None:
        with ts.training(net):
            torch.func.vmap(net)(torch.randn(3, 4))  # named

    return note_of(compute)
