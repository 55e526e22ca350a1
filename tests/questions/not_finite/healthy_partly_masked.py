"""Attention with a causal mask: each row keeps a position."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite


def case() -> str:
    query, x = nn.Linear(8, 8), torch.randn(4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()

    def make_loss() -> torch.Tensor:
        scores = (query(x) @ x.T).masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ x).square().sum()

    return not_finite(make_loss)
