"""The first block of a model is in a reentrant checkpoint and takes the batch itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.reading import unused

FINDS, SAYS = "reentrant checkpoint", ("0.weight", "use_reentrant=False", "requires grad")


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    return unused(lambda: net[1](checkpoint(net[0], torch.randn(3, 4), use_reentrant=True)).sum(), net)  # named
