"""create_graph is passed in a later step, for the norm of a gradient."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("torch.compile", "create_graph=True", "donated_buffer = False")


def case() -> str:
    torch.compiler.reset()  # the number of compilations of nn.Sequential is limited in a process
    net = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)), backend="aot_eager")
    weights = list(net.parameters())

    def train() -> None:
        with ts.training():
            net(torch.randn(3, 4)).sum().backward()
            loss = net(torch.randn(3, 4)).square().mean()
            torch.autograd.grad(loss, weights, create_graph=True)  # named

    return note_of(train)
