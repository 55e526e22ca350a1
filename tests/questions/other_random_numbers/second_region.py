"""Only the second of two checkpoints leaves the random state out."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.asking import faults_of

FINDS, SAYS = "other random numbers", ("dropout", "preserve_rng_state=True")


def case() -> str:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8, requires_grad=True)

    def make_loss() -> torch.Tensor:
        kept = checkpoint(net, x, use_reentrant=False)
        return checkpoint(net, kept, use_reentrant=False, preserve_rng_state=False).square().sum()

    return faults_of(make_loss)
