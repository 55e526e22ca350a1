"""A gradient penalty with create_graph."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused


def case() -> str:
    net = nn.Linear(4, 1, bias=False)

    def make_loss() -> torch.Tensor:
        x = torch.randn(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (gradient.norm(2, 1) - 2).square().mean() + net(x).sum()

    return unused(make_loss, net)
