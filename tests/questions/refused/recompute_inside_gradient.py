"""A plan is applied inside of a function that torch.func.grad differentiates."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.recompute", "torch.func.grad", "cannot")


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    x, weights = torch.randn(256, 4), dict(net.named_parameters())
    plan = ts.plan_recompute(lambda: net(x).square().sum(), budget=0.6)

    def loss_of(values: dict[str, torch.Tensor]) -> torch.Tensor:
        with ts.recompute(plan):
            return torch.func.functional_call(net, values, (x,)).square().sum()

    return refused(lambda: torch.func.grad(loss_of)(weights))
