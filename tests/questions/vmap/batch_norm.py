"""An ensemble of models with batch norm."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("BatchNorm1d", "GroupNorm")


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def compute() -> None:
        with ts.capture(net):
            torch.func.vmap(net)(torch.randn(2, 3, 4))  # named

    return note_of(compute)
