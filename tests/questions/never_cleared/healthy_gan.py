"""A generator's backward also leaves gradients in the discriminator, which are cleared before its own backward."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    first, second = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)

    def step(number: int) -> None:
        second.zero_grad(set_to_none=number % 2 == 0)
        fake = generator(torch.randn(5, 3))
        (critic(fake.detach()).mean() - critic(torch.randn(5, 4)).mean()).backward()
        second.step()
        first.zero_grad(set_to_none=number % 2 == 0)
        (-critic(fake).mean()).backward()
        first.step()

    return watched([generator, critic], [first, second], step, 30)
