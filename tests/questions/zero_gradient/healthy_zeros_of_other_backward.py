"""zero_grad(set_to_none=False) leaves zeros in a model that another one's backward does not reach."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    first, second = torch.optim.SGD(actor.parameters(), 1e-2), torch.optim.SGD(critic.parameters(), 1e-2)

    def step(number: int) -> None:
        for model, optimizer, every in ((critic, second, 1), (actor, first, 8)):
            optimizer.zero_grad(set_to_none=False)
            if number % every == 0:
                model(torch.randn(5, 4)).square().mean().backward()
                optimizer.step()

    return watched([actor, critic], [first, second], step, 100)
