"""The last token of each sequence is kept as a view."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts

FINDS, SAYS = ("held view", ("state['last']", ".clone()"))


def case() -> ts.types.PeakReport:
    net, x = nn.Linear(64, 256), torch.randn(8, 64, 64)
    state: dict[str, torch.Tensor] = {}

    def make_loss() -> torch.Tensor:
        y = net(x)  # named
        state["last"] = y[:, -1].detach()
        return y.sum()

    return ts.profile(make_loss).peak()
