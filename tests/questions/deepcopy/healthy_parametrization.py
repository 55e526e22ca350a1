"""A parametrization computes the weight when it is read, so the module holds no result."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Tanh())

    def train() -> None:
        with ts.training(net):
            net(torch.randn(3, 4)).sum().backward()
            deepcopy(net)

    return note_of(train)
