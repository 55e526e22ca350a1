"""An LSTM's two states are carried in an attribute as a tuple."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("state", "detach()")


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.state = nn.LSTM(4, 5), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, state = self.lstm(x, self.state)
        self.state = state  # named
        return y


def case() -> str:
    net = Reader()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def train() -> None:
        with ts.training(net, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(3, 2, 4)).square().mean().backward()
                optimizer.step()

    return note_of(train)
