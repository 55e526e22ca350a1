"""An error of the user's own inside of vmap."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    def score(row: torch.Tensor) -> torch.Tensor:
        if row.numel() != 5:
            raise ValueError("expected five features")
        return row.sum()

    def compute() -> None:
        with ts.capture():
            torch.func.vmap(score)(torch.randn(3, 4))

    return note_of(compute)
