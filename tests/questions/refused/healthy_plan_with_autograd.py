"""A gradient in the forward by torch.autograd.grad."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused


def case() -> str:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)), torch.randn(6, 4, requires_grad=True)

    def make_loss() -> torch.Tensor:
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return slope.square().sum()

    return refused(lambda: ts.plan_recompute(make_loss, budget=0.9))
