"""create_graph=True leaves the gradients of two models a graph, and only those of one are cleared."""

from __future__ import annotations

import gc

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("create_graph=True", ".grad", "weight", "torch.autograd.grad", "set_to_none=True")
ALSO = ("never cleared",)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Softplus(), nn.Linear(6, 1))
    head = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 1e-3)

    def step(_: int) -> None:
        net.zero_grad()
        head(net(torch.randn(4, 6))).sum().backward(create_graph=True)  # named
        optimizer.step()

    gc.disable()
    try:
        return watched([net, head], optimizer, step)
    finally:
        gc.enable()
