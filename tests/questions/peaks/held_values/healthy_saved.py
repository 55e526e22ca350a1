"""The backward needs the kept values at its peak as well."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "held output"


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(512, 64)
    seen: list[torch.Tensor] = []

    def make_loss() -> torch.Tensor:
        y = net(x).exp()
        seen[:] = [y]
        return (y * y.sin()).mean()

    return ts.profile(make_loss).peak()
