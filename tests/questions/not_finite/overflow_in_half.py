"""A product above the largest float16."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("65504", "float16", "float32")


def case() -> str:
    weight = nn.Parameter(torch.full((4,), 300.0, dtype=torch.float16))

    def make_loss() -> torch.Tensor:
        return (weight * weight).sum()  # named

    return not_finite(make_loss)
