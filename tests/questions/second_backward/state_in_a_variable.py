"""A cell's state is a variable of the loop."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-backward", ("hidden = hidden.detach()",)


def case() -> str:
    cell, hidden = nn.GRUCell(3, 4), torch.zeros(2, 4)
    optimizer = torch.optim.SGD(cell.parameters(), 1e-2)

    def train(hidden: torch.Tensor = hidden) -> None:
        with ts.training(cell, optimizer):
            for _ in range(3):
                hidden = cell(torch.randn(2, 3), hidden)  # named
                hidden.square().mean().backward()
                optimizer.step()

    return note_of(train)
