"""A logsumexp over a row of -inf that the loss leaves out."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("logsumexp", "-inf", "finfo")


def case() -> str:
    scores, mask = nn.Parameter(torch.randn(3, 4)), torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False

    def make_loss() -> torch.Tensor:
        masked = scores.masked_fill(~mask, float("-inf"))
        return masked.logsumexp(-1)[mask.any(-1)].sum()  # named

    return not_finite(make_loss)
