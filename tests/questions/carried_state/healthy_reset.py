"""Each batch starts with a new state."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.rnn(x)
        return self.out(y)


def case() -> ts.types.Training:
    net = Tagger()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(2, 3, 4)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
