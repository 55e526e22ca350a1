"""Three tasks have an encoder each and weights that are learned."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("sum of parts", (3, "backward()"))


def case() -> ts.types.PeakReport:
    nets = [
        nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
        for _ in range(3)
    ]
    weights, x = nn.Parameter(torch.zeros(3)), torch.randn(512, 64)

    def make_loss() -> torch.Tensor:
        losses = [net(x).square().mean() for net in nets]
        return sum((weight * loss for weight, loss in zip(weights.unbind(), losses, strict=True)), torch.zeros(()))

    return ts.profile(make_loss).peak()
