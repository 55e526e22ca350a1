"""The vocabulary grows in step 13: the embedding is another parameter from then on."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("0.weight", "step 13", "optimizer.add_param_group")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step(number: int) -> None:
        if number == 13:
            larger = torch.cat([net[0].weight.detach(), torch.zeros(2, 4)])
            net[0].weight = nn.Parameter(larger)  # named
        optimizer.zero_grad()
        net(torch.randint(10, (4,))).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 20)
