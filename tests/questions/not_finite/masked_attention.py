"""Attention whose second row is fully masked."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("softmax", "row [1, :]", "-inf", "masked", "scaled_dot_product_attention")


def case() -> str:
    query, x, mask = nn.Linear(8, 8), torch.randn(4, 8), torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False

    def make_loss() -> torch.Tensor:
        scores = (query(x) @ x.T).masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, -1)  # named
        return (weights @ x).square().sum()

    return not_finite(make_loss)
