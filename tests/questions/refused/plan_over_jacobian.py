"""A recomputation plan of a loss with a Jacobian of torch.func."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.plan_recompute", "jacrev", "cannot", "torch.autograd.grad")


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(4)
    return refused(
        lambda: ts.plan_recompute(
            lambda: torch.func.jacrev(net)(x).square().sum(),  # named
            budget=0.5,
        )
    )
