"""A hook is a method of an object with thousands of objects of its own."""

from __future__ import annotations

import torch

from tapescope.tests.questions.asking import warnings_of_history

FINDS, SAYS = "costly history", ("history", "hooks", "about", "history=False")


class Record:
    def __init__(self, number: int) -> None:
        self.number, self.seen = number, []


class Tracker:
    def __init__(self) -> None:
        self.records = [Record(number) for number in range(1500)]

    def note(self, gradient: torch.Tensor) -> None:
        self.records[0].seen.clear()


def case() -> str:
    y, tracker = torch.ones(4, requires_grad=True), Tracker()
    for _ in range(1500):
        y = y.sin()
        y.register_hook(tracker.note)
    return warnings_of_history(y.sum())
