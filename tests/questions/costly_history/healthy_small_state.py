"""A hook on each tensor refers to one list."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history


def case() -> str:
    y, state = torch.ones(4, requires_grad=True), [1]
    for _ in range(300):
        y = y.sin()
        y.register_hook(lambda gradient: gradient if state else None)
    return warnings_of_history(y.sum())
