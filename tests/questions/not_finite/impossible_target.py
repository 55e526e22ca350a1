"""A CTC target with repeats that needs more time steps than there are."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("ctc_loss", "target 0", "zero_infinity=True")


def case() -> str:
    logits = nn.Parameter(torch.randn(4, 2, 5))
    targets, steps, lengths = torch.tensor([[1, 1, 1], [1, 2, 3]]), torch.tensor([4, 4]), torch.tensor([3, 3])

    def make_loss() -> torch.Tensor:
        return nn.functional.ctc_loss(logits.log_softmax(-1), targets, steps, lengths)  # named

    return not_finite(make_loss)
