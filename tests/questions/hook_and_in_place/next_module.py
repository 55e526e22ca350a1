"""A module's backward hook in front of an in-place activation."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "view-in-place", ("conv (Conv1d)", "act (ReLU)", "inplace=False")


def case() -> str:
    net = nn.Sequential()
    net.add_module("conv", nn.Conv1d(2, 3, 3))
    net.add_module("act", nn.ReLU(inplace=True))
    net.conv.register_full_backward_hook(lambda module, given, taken: None)
    return note_of(lambda: ts.profile(lambda: net(torch.randn(2, 2, 8)).sum()))  # named
