"""One of two models, each with an optimizer, gets a huge gradient once."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "norm", ("step 40", "clip_grad_norm_")
ALSO = ("non-finite", "zero gradient")


def case() -> ts.types.Training:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), 1e-2) for net in nets]

    def step(number: int) -> None:
        for place, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            optimizer.zero_grad()
            scale = 1e8 if (number, place) == (40, 1) else 1
            (net(torch.randn(8, 6)).sub(1).square().mean() * scale).backward()
            optimizer.step()

    return watched(nets, optimizers, step, 100)
