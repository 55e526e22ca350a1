"""A queue of negatives is updated in place, but was created under inference_mode."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "inference-tensor", ("queue", "inference_mode", "clone()")


def case() -> str:
    net = nn.Linear(4, 4)
    with torch.inference_mode():
        queue = net(torch.randn(6, 4))

    def train() -> None:
        with ts.training(net):
            queue[:2] = torch.randn(2, 4)  # named
            (net(torch.randn(2, 4)) @ queue.T).sum().backward()

    return note_of(train)
