"""Several epochs of a clipped policy objective on each batch of experience."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    actor, critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 3e-3)
    states, actions, before, gain = torch.empty(0), torch.empty(0), torch.empty(0), torch.empty(0)

    def step(number: int) -> None:
        nonlocal states, actions, before, gain
        if number % 8 == 0:
            with torch.no_grad():
                states, gain = torch.randn(32, 4), torch.randn(32)
                policy = Categorical(logits=actor(states))
                actions = policy.sample()
                before = policy.log_prob(actions)
        ratio = (Categorical(logits=actor(states)).log_prob(actions) - before).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        optimizer.zero_grad()
        (loss + (critic(states).squeeze() - gain).square().mean()).backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()

    return watched([actor, critic], optimizer, step, 80)
