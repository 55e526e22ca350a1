"""A norm to a power below 1, at a vector of zeros."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("pow", "clamp(min=eps)")


def case() -> str:
    net, x = nn.Linear(4, 4, bias=False), torch.zeros(3, 4)

    def make_loss() -> torch.Tensor:
        return torch.linalg.vector_norm(net(x), dim=-1).pow(0.5).sum()  # named

    return not_finite(make_loss)
