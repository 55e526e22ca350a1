"""A reentrant checkpoint whose input requires grad."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.reading import unused


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    return unused(lambda: checkpoint(net, torch.randn(3, 4, requires_grad=True), use_reentrant=True).sum(), net)
