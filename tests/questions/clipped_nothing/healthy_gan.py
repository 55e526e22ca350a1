"""Two models are clipped before the step of each."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
    first, second = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)

    def step(_: int) -> None:
        second.zero_grad()
        fake = generator(torch.randn(5, 3))
        critic(fake.detach()).sigmoid().mean().backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        second.step()
        first.zero_grad()
        (-critic(fake).sigmoid().mean()).backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        first.step()

    return watched([generator, critic], [first, second], step, 20)
