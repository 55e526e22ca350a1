"""Python's random numbers, which a checkpoint does not restore, choose a path."""

from __future__ import annotations

import random

import torch
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "checkpoint", ("random.randrange()", "path")


random.seed(1)


def path(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(random.randrange(2, 10**6) % 1000 + 1).sin()  # named


def case() -> str:
    x = torch.randn(2, requires_grad=True)

    def train() -> None:
        with ts.capture():
            checkpoint(path, x, use_reentrant=False).sum().backward()

    return note_of(train)
