"""A gradient penalty through a module that calls scaled_dot_product_attention."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("mix", "Mixer", "sdpa_kernel(SDPBackend.MATH)")


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)  # named


def case() -> str:
    net = nn.Sequential()
    net.add_module("mix", Mixer())

    def train() -> None:
        with ts.training(net):
            x = torch.randn(1, 2, 4, 8, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            slope.square().mean().backward()

    return note_of(train)
