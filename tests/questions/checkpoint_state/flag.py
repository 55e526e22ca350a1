"""A flag is switched after the forward, and the recomputation takes the other branch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "checkpoint", ("self.is_warm", "Switched")


class Switched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.is_warm = nn.Linear(4, 4), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        return y if self.is_warm else y.sin().cos()  # named


def case() -> str:
    net = Switched()

    def train() -> None:
        with ts.capture(net):
            loss = checkpoint(net, torch.randn(2, 4), use_reentrant=False).sum()
            net.is_warm = True
            loss.backward()

    return note_of(train)
