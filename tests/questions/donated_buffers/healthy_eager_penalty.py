"""The penalty runs uncompiled, and the loss compiled."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    torch.compiler.reset()  # the number of compilations of nn.Sequential is limited in a process
    critic = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)), backend="aot_eager")

    def train() -> None:
        with ts.training():
            x = torch.randn(3, 4, requires_grad=True)
            with torch.compiler.set_stance("force_eager"):
                (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            (slope.norm(2, 1) - 1).square().mean().backward()
            critic(x.detach()).mean().backward()

    return note_of(train)
