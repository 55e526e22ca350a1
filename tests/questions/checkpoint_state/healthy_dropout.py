"""A checkpoint restores torch's random numbers for dropout."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    return note_of(lambda: ts.backward(checkpoint(net, torch.randn(2, 4), use_reentrant=False).sum()))
