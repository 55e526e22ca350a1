"""rrelu draws its slopes again."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.asking import faults_of

FINDS, SAYS = "other random numbers", ("rrelu", "preserve_rng_state=True")


def case() -> str:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.RReLU()), torch.randn(4, 8, requires_grad=True)
    return faults_of(lambda: checkpoint(net, x, use_reentrant=False, preserve_rng_state=False).square().sum())
