"""A hook refers to one large tensor, which counts as one object."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history


def case() -> str:
    y, scale = torch.ones(4, requires_grad=True), torch.ones(100_000)
    for _ in range(300):
        y = y.sin()
        y.register_hook(lambda gradient: gradient * scale[0])
    return warnings_of_history(y.sum())
