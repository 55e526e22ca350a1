"""A recomputation plan of a model compiled by torch.compile."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.plan_recompute", "torch.compile", "cannot", "force_eager")


def case() -> str:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), torch.randn(6, 4)
    compiled = torch.compile(net, backend="aot_eager")
    return refused(lambda: ts.plan_recompute(lambda: compiled(x).square().sum(), budget=0.5))
