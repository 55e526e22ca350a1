"""A network of forces differentiates its energy inside of forward, and forgets create_graph."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "create_graph=True", ("energy.weight",)


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.energy, self.scale = nn.Linear(3, 1, bias=False), nn.Parameter(torch.ones(()))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        energy = self.energy(positions).sum()
        (slope,) = torch.autograd.grad(energy, positions)  # named
        return -self.scale * slope


def case() -> str:
    net = Forces()
    return unused(lambda: net(torch.randn(2, 3, requires_grad=True)).square().mean(), net)
