"""The encoder's features are computed once, and only the head runs in the loop."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("features", "before the loop", "features.detach()")


def case() -> str:
    encoder, head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], 1e-2)

    def train() -> None:
        features = encoder(torch.randn(8, 4))  # named
        with ts.capture():
            for _ in range(3):
                head(features).square().mean().backward()
                optimizer.step()

    return note_of(train)
