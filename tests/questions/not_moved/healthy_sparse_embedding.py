"""SparseAdam and SGD step sparse gradients of an embedding, most of whose rows get none."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Embedding(500, 4, sparse=True), nn.Linear(4, 1))
    optimizers = [torch.optim.SparseAdam(net[0].parameters(), 1e-2), torch.optim.SGD(net[1].parameters(), 1e-2)]

    def step(_: int) -> None:
        for each in optimizers:
            each.zero_grad()
        net(torch.randint(500, (4,))).square().mean().backward()
        for each in optimizers:
            each.step()

    return watched(net, optimizers, step, 40)
