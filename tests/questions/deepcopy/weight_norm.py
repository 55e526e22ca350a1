"""torch.nn.utils.weight_norm computes a weight in each forward, which the module then holds."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "deepcopy", ("0.weight", "torch.nn.utils.parametrizations.weight_norm")


def case() -> str:
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Tanh())

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).sum().backward()
            deepcopy(net)  # named

    return note_of(train)
