"""The function fills a tensor of zeros with results of its sample."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "transforms", ("out[0]", "torch.zeros_like(x)")


def case() -> str:
    def spread(row: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(2)
        out[0] = row.sum()  # named
        return out

    def compute() -> None:
        with ts.capture():
            torch.func.vmap(spread)(torch.randn(3, 4))

    return note_of(compute)
