"""torch.nn.init works under no_grad itself."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def case() -> str:
    def train() -> None:
        with ts.capture():
            Scaled()(torch.randn(3, 4)).sum().backward()

    return note_of(train)
