"""A block adds to a hooked module's output in place."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "view-in-place", ("lin (Linear)", "y += x", "hook")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        y += x  # named
        return y


def case() -> str:
    net = Block()
    net.lin.register_full_backward_hook(lambda module, given, taken: None)

    def train() -> None:
        with ts.training(net):
            net(torch.randn(2, 4)).sum().backward()

    return note_of(train)
