"""A factor is missing in one branch."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import differences

FINDS, SAYS = "other gradients", ("2.0 times", "MulBackward0")


def case() -> str:
    net, head, x = nn.Linear(6, 8), nn.Linear(6, 8), torch.randn(16, 6)

    def whole(factor: float) -> torch.Tensor:
        return (factor * net(x).tanh()).sum() + head(x).sum()  # named

    return differences(lambda: whole(0.5), lambda: whole(1.0))
