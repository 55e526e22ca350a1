"""The outputs of a step are copied for a log."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "deepcopy", ("outputs['logits']", "detach()")


def case() -> str:
    net = nn.Linear(4, 3)

    def train() -> None:
        with ts.capture(net):
            outputs = {"ids": torch.arange(2), "logits": net(torch.randn(2, 4))}
            log = [copy.deepcopy(outputs)]  # named
            log.clear()

    return note_of(train)
