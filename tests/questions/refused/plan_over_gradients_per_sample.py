"""A recomputation plan of a loss of gradients per sample."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.plan_recompute", "torch.func.grad", "cannot", "torch.autograd.grad")


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)
    weights = dict(net.named_parameters())

    def loss_of(values: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, values, (row,)).square().sum()

    def make_loss() -> torch.Tensor:
        gradients = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(weights, x)  # named
        return torch.stack([each.square().sum() for each in gradients.values()]).sum()

    return refused(lambda: ts.plan_recompute(make_loss, budget=0.5))
