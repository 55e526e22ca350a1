"""The row of the padding token is set to zero."""

from __future__ import annotations

from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "leaf-in-place", ("weight", "view", "torch.no_grad()")


def case() -> str:
    net = nn.Embedding(9, 4)

    def train() -> None:
        with ts.training(net):
            net.weight[0] = 0.0  # named

    return note_of(train)
