"""The hidden state lives in an attribute of the module from batch to batch."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("Tagger.hidden", "self.hidden = self.hidden.detach()")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out, self.hidden = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 2), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.hidden = self.rnn(x, self.hidden)  # named
        return self.out(y)


def case() -> str:
    net = Tagger()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def train() -> None:
        with ts.training(net, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(2, 3, 4)).square().mean().backward()
                optimizer.step()

    return note_of(train)
