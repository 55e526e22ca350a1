"""Backward hooks of modules share a list of objects."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import warnings_of_history

FINDS, SAYS = "costly history", ("history", "hooks", "history=False")


class Record:
    def __init__(self, number: int) -> None:
        self.number, self.seen = number, []


def case() -> str:
    records = [Record(number) for number in range(1500)]
    net = nn.Sequential(*(nn.Tanh() for _ in range(600)))
    for module in net:
        module.register_full_backward_hook(lambda module, given, taken: records[0].seen.clear())
    return warnings_of_history(net(torch.ones(4, requires_grad=True)).sum())
