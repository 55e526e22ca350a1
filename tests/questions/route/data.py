"""A layer reads .data of the features."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "data", ("0.weight",)


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def make_loss() -> torch.Tensor:
        hidden = net[0](torch.randn(2, 4))
        return net[1](hidden.data).sum()  # named

    return unused(make_loss, net)
