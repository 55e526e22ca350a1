"""A table cached in evaluation under inference_mode is then read in training."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "inference-tensor", ("table", "inference_mode", "clone()")


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.table = nn.Linear(4, 4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1]).float()[:, None].cos()
        return self.lin(x) * self.table  # named


def case() -> str:
    net, x = Positions(), torch.randn(2, 5, 4)
    with torch.inference_mode():
        net(x)

    def train() -> None:
        with ts.training(net):
            net(x).sum().backward()

    return note_of(train)
