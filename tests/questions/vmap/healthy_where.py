"""torch.where selects by sample."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    def compute() -> None:
        with ts.capture():
            torch.func.vmap(lambda row: torch.where(row.sum() > 0, row.exp(), row))(torch.randn(3, 4))

    return note_of(compute)
