"""The discriminator's optimizer steps after a backward of the generator's part alone."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "grad-scaler", ("critic.weight", "RMSprop", "skip this step")


def case() -> str:
    net = nn.ModuleDict({"made": nn.Linear(4, 4), "critic": nn.Linear(4, 1)})
    made, critic = (torch.optim.RMSprop(net[name].parameters(), 0.1) for name in ("made", "critic"))
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        with ts.capture(net):
            scaler.scale(net["made"](torch.randn(3, 4)).square().mean()).backward()
            scaler.step(made)
            scaler.step(critic)  # named

    return note_of(train)
