"""A gradient penalty is computed without create_graph, so it adds a constant."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "create_graph=True", ("weight",)


def case() -> str:
    net = nn.Linear(4, 1, bias=False)

    def make_loss() -> torch.Tensor:
        x = torch.randn(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(net(x).sum(), x)  # named
        return (gradient.norm(2, 1) - 1).square().mean() + x.sum()

    return unused(make_loss, net)
