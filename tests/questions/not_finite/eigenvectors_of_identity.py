"""Eigenvectors of a matrix with equal eigenvalues."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("eigenvalues are equal", "eigvalsh")


def case() -> str:
    matrix = nn.Parameter(torch.eye(3))

    def make_loss() -> torch.Tensor:
        _, vectors = torch.linalg.eigh(matrix)  # named
        return vectors[:, 0].square().sum() + vectors[0].sum()

    return not_finite(make_loss)
