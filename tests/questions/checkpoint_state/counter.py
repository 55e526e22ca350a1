"""A layer drops itself by a counter of its calls."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "checkpoint", ("self.calls", "checkpoint")


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # named
        return self.lin(x).relu().sin() if self.calls % 2 else self.lin(x)


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), Skipping())

    def train() -> None:
        with ts.training(net):
            checkpoint(net, torch.randn(2, 4), use_reentrant=False).sum().backward()

    return note_of(train)
