"""A trainer object carries the moving average of a loss from step to step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("average", "detach()")


class Trainer:
    def __init__(self) -> None:
        self.net, self.average = nn.Linear(4, 1), torch.zeros(())
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-2)

    def step(self) -> None:
        loss = self.net(torch.randn(8, 4)).square().mean()
        self.average = 0.9 * self.average + 0.1 * loss  # named
        self.average.backward()
        self.optimizer.step()


def case() -> str:
    trainer = Trainer()

    def train() -> None:
        with ts.training(trainer.net, trainer.optimizer):
            for _ in range(3):
                trainer.step()

    return note_of(train)
