"""A gradient penalty of a network of layers and smooth activations."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))

    def train() -> None:
        with ts.training(net):
            x = torch.randn(3, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            (slope.norm(2, 1) - 1).square().mean().backward()

    return note_of(train)
