"""A standard deviation over a batch of one."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("std", "one value", "correction=0")


def case() -> str:
    net, x = nn.Linear(4, 4), torch.randn(1, 4)

    def make_loss() -> torch.Tensor:
        return net(x).std(0).sum()  # named

    return not_finite(make_loss)
