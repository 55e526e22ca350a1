"""A discriminator is updated between its forward and the generator's backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "modified-in-place", ("2.weight", "SGD.step()")


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training():
            critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(critic.parameters(), 0.1)
            score = critic(net(torch.randn(3, 4))).mean()
            score.backward(retain_graph=True)
            optimizer.step()
            score.backward()

    return note_of(train)
