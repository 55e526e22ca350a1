"""A trainer object keeps its latest loss, and is copied as a checkpoint."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "deepcopy", ("trainer.losses[0]", "detach()")


class Trainer:
    def __init__(self) -> None:
        self.net = nn.Linear(4, 1)
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        self.losses.append(self.net(torch.randn(8, 4)).square().mean())
        self.losses[-1].backward()


def case() -> str:
    trainer = Trainer()

    def train() -> None:
        with ts.training(trainer.net):
            trainer.step()
            deepcopy(trainer)  # named

    return note_of(train)
