"""Logits and their shifted copy are both alive while the loss is computed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tapescope as ts

FINDS, SAYS = ("forward variable", ("logits", "shift", "del"))


def case() -> ts.types.PeakReport:
    head = nn.Linear(32, 2000)
    x, ids = torch.randn(4, 64, 32), torch.randint(0, 2000, (4, 64))

    def make_loss() -> torch.Tensor:
        logits = head(x).float()  # named
        shift = logits[:, :-1].contiguous()  # named
        return cross_entropy(shift.view(-1, 2000), ids[:, 1:].reshape(-1))

    return ts.profile(make_loss).peak(phase="forward")
