"""A hook object logs into a dict of ten thousand records."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history

FINDS, SAYS = "costly history", ("history", "hooks", "about", "history=False")


class Logger:
    def __init__(self) -> None:
        self.records = {number: [number, {}] for number in range(2000)}

    def __call__(self, gradient: torch.Tensor) -> None:
        self.records[0][0] += 1


def case() -> str:
    y, logger = torch.ones(4, requires_grad=True), Logger()
    for _ in range(1500):
        y = y.sin()
        y.register_hook(logger)
    return warnings_of_history(y.sum())
