"""Logits stay alive beside their float32 copy."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tapescope as ts

FINDS, SAYS = ("forward variable", ("logits", "wide", "del"))


def case() -> ts.types.PeakReport:
    head = nn.Linear(32, 2000).bfloat16()
    x, ids = torch.randn(256, 32).bfloat16(), torch.randint(0, 2000, (256,))

    def make_loss() -> torch.Tensor:
        logits = head(x)  # named
        wide = logits.float()  # named
        return cross_entropy(wide, ids)

    return ts.profile(make_loss).peak(phase="forward")
