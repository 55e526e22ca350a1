"""The hook is on the tensor."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net, act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def make_loss() -> torch.Tensor:
        y = net(torch.randn(2, 4))
        y.register_hook(lambda gradient: None)
        return act(y).sum()

    return note_of(lambda: ts.profile(make_loss))
