"""The losses of several replicas are stacked, as DataParallel returns them."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "not-a-scalar", ("losses", "(2,)", "losses.sum()")


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.capture(net):
            losses = torch.stack([net(torch.randn(3, 4)).square().mean() for _ in range(2)])
            losses.backward()  # named

    return note_of(train)
