"""A capture inside of a function that torch.func.grad differentiates."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)
    weights = dict(net.named_parameters())

    def loss_of(values: dict[str, torch.Tensor]) -> torch.Tensor:
        with ts.capture(net):
            return torch.func.functional_call(net, values, (x,)).square().sum()

    return refused(lambda: torch.func.grad(loss_of)(weights))
