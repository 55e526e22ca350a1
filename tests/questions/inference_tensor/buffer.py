"""A running statistic was replaced by an evaluation."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "inference-tensor", ("scale", "inference_mode")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.scale = x.std(0)
        return self.lin(x) * self.scale  # named


def case() -> str:
    net = Scaled().eval()
    with torch.inference_mode():
        net(torch.randn(3, 4))
    net.train()
    return note_of(lambda: ts.profile(lambda: net(torch.randn(2, 4)).sum()))
