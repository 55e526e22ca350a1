"""One feature of each step is kept in a dict as a view."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("seen['mean'][0]", ".clone()")


def case() -> ts.types.Training:
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    seen: dict[str, list[torch.Tensor]] = {"mean": []}

    def step(number: int) -> None:
        optimizer.zero_grad()
        y = net(torch.randn(2048, 64))
        y.square().mean().backward()
        optimizer.step()
        seen["mean"].append(y.detach()[:, 0])

    return watched(net, optimizer, step, 20)
