"""From the second step on, a compiled model has two losses with a backward for each."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("torch.compile", "retain_graph=True", "donated_buffer = False")


def case() -> str:
    torch.compiler.reset()  # the number of compilations of nn.Sequential is limited in a process
    net = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)), backend="aot_eager")

    def train() -> None:
        with ts.training():
            net(torch.randn(3, 4)).sum().backward()
            y = net(torch.randn(3, 4))
            y.sum().backward(retain_graph=True)  # named
            y.square().sum().backward()

    return note_of(train)
