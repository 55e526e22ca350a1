"""Meta-learning differentiates an inner step of a CTC loss."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("criterion (CTCLoss)", "create_graph")


class Recognizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.criterion = nn.Linear(4, 3), nn.CTCLoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.lin(x).log_softmax(2)
        return self.criterion(scores, torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2]))


def case() -> str:
    net = Recognizer()

    def train() -> None:
        with ts.training(net):
            slopes = torch.autograd.grad(net(torch.randn(5, 1, 4)), net.parameters(), create_graph=True)
            sum(each.square().sum() for each in slopes).backward()  # named

    return note_of(train)
