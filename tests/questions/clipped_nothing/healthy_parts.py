"""Body and head are clipped one by one, while the body is frozen and the head is left out in some steps."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    body, head = nn.Linear(6, 6), nn.Linear(6, 1)
    body.requires_grad_(False)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 1e-3)

    def step(number: int) -> None:
        body.requires_grad_(number >= 8)
        optimizer.zero_grad()
        hidden = body(torch.randn(8, 6))
        (hidden if number > 12 else head(hidden)).square().mean().backward()
        nn.utils.clip_grad_norm_(body.parameters(), 1.0)
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()

    return watched([body, head], optimizer, step, 20)
