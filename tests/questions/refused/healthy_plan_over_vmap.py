"""vmap in a forward: its operations are those of the whole batch."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)
    return refused(lambda: ts.plan_recompute(lambda: torch.func.vmap(net)(x).square().sum(), budget=0.9))
