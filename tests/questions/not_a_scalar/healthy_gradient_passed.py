"""The gradient of the output is passed, as between two parts of a pipeline."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)

    def train() -> None:
        with ts.training((first, second)):
            y = first(torch.randn(3, 4))
            handed = y.detach().requires_grad_()
            second(handed).sum().backward()
            y.backward(handed.grad)

    return note_of(train)
