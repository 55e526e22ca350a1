"""A large graph without hooks, in a program with many objects."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history


def case() -> str:
    y, state = torch.ones(4, requires_grad=True), [[number] for number in range(2000)]
    for _ in range(1500):
        y = y.sin()
    assert state
    return warnings_of_history(y.sum())
