"""All parameters of the optimizer were frozen for another phase of the training."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "grad-scaler", ("body.weight", "requires_grad_()")


def case() -> str:
    net = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    body = torch.optim.SGD(net["body"].parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        with ts.training(net):
            net["body"].requires_grad_(False)
            scaler.scale(net["head"](net["body"](torch.randn(3, 4))).square().mean()).backward()
            scaler.step(body)  # named

    return note_of(train)
