"""A module of the user's scales its output in place."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "modified-in-place", ("ExpBackward0", "inplace=False")


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y *= 0.5  # named
        return y


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), Gate())

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).sum().backward()

    return note_of(train)
