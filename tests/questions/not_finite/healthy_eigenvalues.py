"""Only eigenvalues of the identity, which have a derivative."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite


def case() -> str:
    matrix = nn.Parameter(torch.eye(3))
    return not_finite(lambda: torch.linalg.eigvalsh(matrix).square().sum())
