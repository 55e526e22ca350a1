"""One of two uses of a weight is detached."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import differences

FINDS, SAYS = "other gradients", ("sums 2 gradients", "1 in", ".detach()")


def case() -> str:
    weight, x = nn.Parameter(torch.randn(6, 4)), torch.randn(16, 6)

    def both(other: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).tanh() + (x @ other).sin()).sum()  # named

    return differences(lambda: both(weight), lambda: both(weight.detach()))
