"""A session of a loss that torch.func.grad computed."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)
    weights = dict(net.named_parameters())

    def loss_of(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(net, values, (x,)).square().sum()

    def debug() -> None:
        gradients = torch.func.grad(loss_of)(weights)
        ts.debug(torch.stack([each.square().sum() for each in gradients.values()]).sum()).run()

    return refused(debug)
