"""Outputs are collected in a list over the whole run, and their mean is backpropagated in each step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("outputs",)


def case() -> str:
    net, outputs = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), []
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def train() -> None:
        with ts.training(net, optimizer):
            for _ in range(3):
                outputs.append(net(torch.randn(2, 4)).mean())  # named
                torch.stack(outputs).mean().backward()
                optimizer.step()

    return note_of(train)
