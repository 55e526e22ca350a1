"""The only large value is the input of the operation at the peak."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tapescope as ts

SILENT = "forward variable"


def case() -> ts.types.PeakReport:
    head = nn.Linear(32, 2000)
    x, ids = torch.randn(256, 32), torch.randint(0, 2000, (256,))

    def make_loss() -> torch.Tensor:
        logits = head(x)
        return cross_entropy(logits, ids)

    return ts.profile(make_loss).peak(phase="forward")
