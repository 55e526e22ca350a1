"""A block with a plan runs an evaluation, which saves no tensors."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import warned


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    x = torch.randn(256, 4)
    plan = ts.plan_recompute(lambda: net(x).square().sum(), budget=0.6)

    def evaluate() -> None:
        with ts.recompute(plan), torch.no_grad():
            net(x).square().sum()

    return warned(evaluate)
