"""Losses are collected in a list, and torch.tensor copies their values."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "tensor", ("weight", "torch.stack")


def case() -> str:
    net = nn.Linear(4, 1)

    def make_loss() -> torch.Tensor:
        losses = [net(torch.randn(4)).squeeze() for _ in range(3)]
        return torch.tensor(losses, requires_grad=True).mean()  # named

    return unused(make_loss, net)
