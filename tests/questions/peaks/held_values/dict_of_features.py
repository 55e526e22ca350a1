"""A dict keeps features by name."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("held output", ("features['last']",))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)
    features: dict[str, torch.Tensor] = {}

    def make_loss() -> torch.Tensor:
        features["last"] = net(x)  # named
        return features["last"].mean()

    return ts.profile(make_loss).peak()
