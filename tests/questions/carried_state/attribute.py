"""A recurrent state lives in an attribute of the module from batch to batch."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = "second backward", ("net.hidden", ".detach()", "rnn (GRU)")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2)
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.rnn(x, self.hidden)
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
