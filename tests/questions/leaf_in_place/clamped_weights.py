"""A critic's weights are clamped after each step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "leaf-in-place", ("0.weight", "clamp_", "torch.no_grad()")


def case() -> str:
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(critic.parameters(), 1e-3)

    def train() -> None:
        with ts.training(critic, optimizer):
            critic(torch.randn(3, 4)).mean().backward()
            optimizer.step()
            critic[0].weight.clamp_(-0.01, 0.01)  # named

    return note_of(train)
