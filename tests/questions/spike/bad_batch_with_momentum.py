"""One corrupted batch and momentum: the loss stays high."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "norm", ("step 50", "clip_grad_norm_")


def case() -> ts.types.Training:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)

    def step(number: int) -> None:
        x = torch.randn(16, 6) * (1e6 if number == 50 else 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        optimizer.step()

    return watched(net, optimizer, step, 120)
