"""The two states of an LSTM live in an attribute from batch to batch."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = "second backward", ("net.state[0]", ".detach()", "rnn (LSTM)")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 2)
        self.state: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.state = self.rnn(x, self.state)
        return self.out(y)


def case() -> ts.types.Training:
    net = Tagger()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(2, 3, 4)).square().mean().backward()  # named
        optimizer.step()

    with ts.training(net, optimizer) as training, suppress(RuntimeError):
        for number in range(3):
            step(number)
    return training
