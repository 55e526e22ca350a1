"""The function branches on a value of its sample."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("row.sum() > 0", "torch.where")


def case() -> str:
    def score(row: torch.Tensor) -> torch.Tensor:
        return row.exp() if row.sum() > 0 else row  # named

    def compute() -> None:
        with ts.capture():
            torch.func.vmap(score)(torch.randn(3, 4))

    return note_of(compute)
