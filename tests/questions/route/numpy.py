"""A statistic is computed by NumPy in between."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "numpy", ("0.weight",)


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def make_loss() -> torch.Tensor:
        values = net[0](torch.randn(2, 4)).detach().numpy()  # named
        return net[1](torch.from_numpy(values * 2)).sum()

    return unused(make_loss, net)
