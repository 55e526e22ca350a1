"""An evaluation under inference_mode runs inside the loop."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 4)

    def train() -> None:
        with ts.training(net):
            for _ in range(2):
                net(torch.randn(2, 4)).sum().backward()
                with torch.inference_mode():
                    net(torch.randn(2, 4)).argmax(1)

    return note_of(train)
