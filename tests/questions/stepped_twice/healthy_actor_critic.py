"""The critic is stepped each time, the actor every second time, and the actor's loss passes through the critic."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    actor, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    first, second = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)

    def step(number: int) -> None:
        state = torch.randn(5, 4)
        second.zero_grad()
        critic(torch.cat([state, torch.randn(5, 2)], 1)).sub(1).square().mean().backward()
        second.step()
        if number % 2:
            first.zero_grad()
            (-critic(torch.cat([state, actor(state)], 1)).mean()).backward()
            first.step()

    return watched([actor, critic], [first, second], step, 30)
