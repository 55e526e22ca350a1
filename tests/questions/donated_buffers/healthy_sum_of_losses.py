"""The losses are added, so that one backward computes both gradients."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    torch.compiler.reset()  # the number of compilations of nn.Sequential is limited in a process
    net = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)), backend="aot_eager")

    def train() -> None:
        with ts.capture():
            net(torch.randn(3, 4)).sum().backward()
            y = net(torch.randn(3, 4))
            (y.sum() + y.square().sum()).backward()

    return note_of(train)
