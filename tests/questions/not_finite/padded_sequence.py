"""nn.MultiheadAttention with a sequence of padding only, which the loss leaves out."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite

FINDS, SAYS = "not finite", ("SoftmaxBackward0", "all NaN", "masked")


def case() -> str:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 4, 8)
    padding = torch.zeros(2, 4, dtype=torch.bool)
    padding[1] = True

    def make_loss() -> torch.Tensor:
        out, _ = attention(x, x, x, key_padding_mask=padding)  # named
        return out[0].square().sum()

    return not_finite(make_loss)
