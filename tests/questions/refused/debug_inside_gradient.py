"""A session is started inside of a function that torch.func.grad differentiates."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.debug", "transform of torch.func", "outside")


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)
    weights = dict(net.named_parameters())

    def loss_of(values: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = torch.func.functional_call(net, values, (x,)).square().sum()
        ts.debug(loss).run()
        return loss

    return refused(lambda: torch.func.grad(loss_of)(weights))
