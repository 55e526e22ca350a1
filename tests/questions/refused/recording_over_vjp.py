"""A recording of a forward that calls torch.func.vjp."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import refused

FINDS, SAYS = "refused", ("ts.record_forward", "vjp", "cannot")


def case() -> str:
    net, x = nn.Linear(4, 2), torch.randn(6, 4)
    weights = dict(net.named_parameters())

    def make_loss() -> torch.Tensor:
        out, pull = torch.func.vjp(lambda values: torch.func.functional_call(net, values, (x,)), weights)  # named
        return out.sum() + pull(torch.ones_like(out))[0]["weight"].square().sum()

    return refused(lambda: ts.record_forward(make_loss))
