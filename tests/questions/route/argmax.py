"""The loss compares predicted classes, which argmax has made integers."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "argmax", ("weight", "integers")


def case() -> str:
    net = nn.Linear(4, 3)

    def make_loss() -> torch.Tensor:
        classes = net(torch.randn(5, 4)).argmax(1)  # named
        return (classes.float() - torch.ones(5)).square().mean().requires_grad_()

    return unused(make_loss, net)
