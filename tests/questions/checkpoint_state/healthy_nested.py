"""Checkpoints inside of checkpoints."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    inner, outer = nn.Linear(4, 4), nn.Linear(4, 4)

    def both(x: torch.Tensor) -> torch.Tensor:
        return outer(checkpoint(inner, x, use_reentrant=False).sin())

    return note_of(lambda: ts.backward(checkpoint(both, torch.randn(2, 4), use_reentrant=False).sum()))
