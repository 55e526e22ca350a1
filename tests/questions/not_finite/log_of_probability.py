"""The logarithm of a softmax that has rounded to 0."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("log", "infinite at 0", "log_softmax")


def case() -> str:
    logits = nn.Parameter(torch.tensor([[0.0, 200.0, 400.0]]))

    def make_loss() -> torch.Tensor:
        chances = logits.softmax(-1)
        return -chances.log()[:, 0].sum()  # named

    return not_finite(make_loss)
