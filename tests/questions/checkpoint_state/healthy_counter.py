"""A counter inside a checkpoint changes nothing that is computed."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.lin(x).sin()


def case() -> str:
    net = Counting()
    return note_of(lambda: ts.backward(checkpoint(net, torch.randn(2, 4), use_reentrant=False).sum()))
