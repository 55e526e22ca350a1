"""The attention is differentiated once."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.MultiheadAttention(8, 2, batch_first=True)

    def train() -> None:
        with ts.training(net):
            x = torch.randn(2, 3, 8)
            y, _ = net(x, x, x, need_weights=False)
            y.sum().backward()

    return note_of(train)
