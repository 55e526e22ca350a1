"""A head of the last steps gets a slice of none of them."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "no elements", ("last.weight", "slice")


def case() -> str:
    net = nn.ModuleDict({"main": nn.Linear(4, 1), "last": nn.Linear(4, 1)})

    def make_loss() -> torch.Tensor:
        x = torch.randn(5, 4)
        return net["main"](x).mean() + net["last"](x[5:]).sum()  # named

    return unused(make_loss, net)
