"""An outer product is needed as a whole."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

SILENT = "broadcast"


def case() -> ts.types.PeakReport:
    a, b = nn.Parameter(torch.randn(512, 1)), nn.Parameter(torch.randn(1, 512))

    def make_loss() -> torch.Tensor:
        return (a * b).softmax(-1).square().mean()

    return ts.profile(make_loss).peak()
