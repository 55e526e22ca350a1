"""A hook of the optimizer clears the gradients after each step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad(set_to_none=False))

    def step(_: int) -> None:
        net(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 12)
