"""One hook only, whose state is read before each of many tasks."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history

FINDS, SAYS = "costly history", ("history", "hooks", "history=False")


def case() -> str:
    x, state = torch.ones(4, requires_grad=True), {number: [number] for number in range(3000)}
    y = x.sin()
    y.register_hook(lambda gradient: gradient if state else None)
    for _ in range(2000):
        y = y.sin()
    return warnings_of_history(y.sum())
