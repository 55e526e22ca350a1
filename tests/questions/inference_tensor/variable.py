"""Class weights were computed by an evaluation function."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "inference-tensor", ("weights", "inference_mode", "clone()")


@torch.inference_mode()
def frequencies() -> torch.Tensor:
    return torch.rand(3)


def case() -> str:
    net, weights = nn.Linear(4, 3), frequencies()

    def train() -> None:
        with ts.capture():
            (net(torch.randn(2, 4)) * weights).sum().backward()  # named

    return note_of(train)
