"""The module in front of the in-place activation has a forward hook only."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    net[0].register_forward_hook(lambda module, given, result: None)
    return note_of(lambda: ts.profile(lambda: net(torch.randn(2, 4)).sum()))
