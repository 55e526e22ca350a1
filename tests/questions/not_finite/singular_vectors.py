"""Singular vectors of a multiple of an orthogonal matrix."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("singular values are equal", "svdvals")


def case() -> str:
    matrix = nn.Parameter(2 * torch.eye(3))

    def make_loss() -> torch.Tensor:
        left, _, _ = torch.linalg.svd(matrix)  # named
        return left[0].sum()

    return not_finite(make_loss)
