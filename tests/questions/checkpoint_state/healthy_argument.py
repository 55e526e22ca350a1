"""The keys are an argument of the checkpointed function."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def attend(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return (x @ keys.T).softmax(-1)


def case() -> str:
    x, keys = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4)
    return note_of(lambda: ts.backward(checkpoint(attend, x, keys, use_reentrant=False).sum()))
