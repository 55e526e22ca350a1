"""A hook on each tensor refers to a thousand objects, which a history reads before each task."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history

FINDS, SAYS = "costly history", ("history", "hooks", "about", "history=False")


def case() -> str:
    y, state = torch.ones(4, requires_grad=True), [[number] for number in range(2000)]
    for _ in range(1500):
        y = y.sin()
        y.register_hook(lambda gradient: gradient if state else None)
    return warnings_of_history(y.sum())
