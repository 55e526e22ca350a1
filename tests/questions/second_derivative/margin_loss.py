"""A Hessian-vector product of a loss whose gradient's own derivative is missing."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("multi_margin_loss", "create_graph")


def case() -> str:
    net, labels = nn.Linear(4, 3), torch.tensor([0, 2])

    def train() -> None:
        with ts.training(net):
            loss = nn.functional.multi_margin_loss(net(torch.randn(2, 4)), labels)  # named
            slopes = torch.autograd.grad(loss, net.parameters(), create_graph=True)
            sum(each.sum() for each in slopes).backward()

    return note_of(train)
