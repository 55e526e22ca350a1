"""A weight of the loss is computed as a Python number."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "item", ("gate.weight", "Python numbers")


def case() -> str:
    net = nn.ModuleDict({"gate": nn.Linear(4, 1), "body": nn.Linear(4, 1)})

    def make_loss() -> torch.Tensor:
        x = torch.randn(1, 4)
        share = net["gate"](x).sigmoid().item()  # named
        return share * net["body"](x).sum()

    return unused(make_loss, net)
