"""A norm with eps=1e-8 in float16, where 1e-8 is 0."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("div", "1e-8 is 0 in float16", "float32")


def case() -> str:
    vectors = nn.Parameter(torch.zeros(3, 4, dtype=torch.float16))

    def make_loss() -> torch.Tensor:
        norm = vectors.norm(dim=-1, keepdim=True) + 1e-8
        return (vectors / norm).sum()  # named

    return not_finite(make_loss)
