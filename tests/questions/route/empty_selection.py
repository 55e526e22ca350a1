"""A mask selects no token, so the loss of an auxiliary head is a sum over nothing."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "selects no element", ("aux.weight", "mask")


def case() -> str:
    net = nn.ModuleDict({"main": nn.Linear(4, 1), "aux": nn.Linear(4, 1)})

    def make_loss() -> torch.Tensor:
        x = torch.randn(5, 4)
        mask = torch.zeros(5, dtype=torch.bool)
        return net["main"](x).mean() + net["aux"](x)[mask].sum()  # named

    return unused(make_loss, net)
