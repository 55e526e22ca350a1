"""A CTC loss that leaves impossible targets out."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite


def case() -> str:
    logits = nn.Parameter(torch.randn(4, 2, 5))
    targets, steps, lengths = torch.tensor([[1, 1, 1], [1, 2, 3]]), torch.tensor([4, 4]), torch.tensor([3, 3])

    def make_loss() -> torch.Tensor:
        scores = logits.log_softmax(-1)
        return nn.functional.ctc_loss(scores, targets, steps, lengths, zero_infinity=True)

    return not_finite(make_loss)
