"""The weights and the optimizer's state are copied, while an output with a graph is alive."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    net = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(net.parameters())

    def train() -> None:
        with ts.training(net, optimizer):
            y = net(torch.randn(2, 4))
            y.sum().backward()
            optimizer.step()
            copy.deepcopy((net.state_dict(), optimizer.state_dict()))
            optimizer.zero_grad()

    return note_of(train)
