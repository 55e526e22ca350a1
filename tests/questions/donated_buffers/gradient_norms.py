"""The norm of a gradient is measured before the backward of a compiled model."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("retain_graph=True", "donated_buffer = False")


def case() -> str:
    torch.compiler.reset()  # the number of compilations of nn.Sequential is limited in a process
    net = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), backend="aot_eager")
    weights = list(net.parameters())

    def train() -> None:
        with ts.capture():
            net(torch.randn(3, 4)).sum().backward()
            loss = net(torch.randn(3, 4)).square().mean()
            torch.autograd.grad(loss, weights, retain_graph=True)  # named
            loss.backward()

    return note_of(train)
