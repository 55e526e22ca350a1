"""An output object keeps the logits."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tapescope as ts

FINDS, SAYS = ("held output", ("out.logits",))


def case() -> ts.types.PeakReport:
    net = nn.Linear(32, 2000)
    x, ids = torch.randn(256, 32), torch.randint(0, 2000, (256,))
    out = SimpleNamespace()

    def make_loss() -> torch.Tensor:
        out.logits = net(x)  # named
        return cross_entropy(out.logits, ids)

    return ts.profile(make_loss).peak()
