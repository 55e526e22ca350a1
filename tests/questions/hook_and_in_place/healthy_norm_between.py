"""A normalization stands between the hooked module and the in-place activation."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(inplace=True))
    net[0].register_full_backward_hook(lambda module, given, taken: None)
    return note_of(lambda: ts.profile(lambda: net(torch.randn(2, 4)).sum()))
