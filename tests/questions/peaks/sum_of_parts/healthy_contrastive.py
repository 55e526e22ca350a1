"""Two branches meet in a matrix product."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tapescope as ts

SILENT = "sum of parts"


def case() -> ts.types.PeakReport:
    first, second = nn.Linear(64, 256), nn.Linear(64, 256)
    x = torch.randn(256, 64)

    def make_loss() -> torch.Tensor:
        scores = first(x).tanh() @ second(x).tanh().t()
        return cross_entropy(scores, torch.arange(256)) + cross_entropy(scores.t(), torch.arange(256))

    return ts.profile(make_loss).peak()
