"""The two states of an LSTM are detached between batches."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 2)
        self.state: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (h, c) = self.rnn(x, self.state)
        self.state = h.detach(), c.detach()
        return self.out(y)


def case() -> ts.types.Training:
    net = Tagger()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(2, 3, 4)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step)
