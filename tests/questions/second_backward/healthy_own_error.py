"""The user's own error leaves a loop in which a state is carried."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    cell, hidden = nn.GRUCell(3, 4), torch.zeros(2, 4)

    def train() -> None:
        with ts.training(cell):
            cell(torch.randn(2, 3), hidden).sum().backward()
            raise ValueError("the second batch is empty")

    return note_of(train)
