"""The in-place activation has the backward hook itself."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "view-in-place", ("1 (Hardtanh)", "inplace=False")


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(inplace=True))
    net[1].register_full_backward_hook(lambda module, given, taken: None)
    return note_of(lambda: ts.find_nan(lambda: net(torch.randn(2, 4)).sum()))
