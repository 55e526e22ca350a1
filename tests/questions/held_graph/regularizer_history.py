"""Weight norms are logged as tensors in a dict of lists; no backward goes through them."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("log['norm'][0]", ".item()", "regularizer_history.py")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    log: dict[str, list[torch.Tensor]] = {"norm": []}

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        log["norm"].append(net[0].weight.norm())

    return watched(net, optimizer, step)
