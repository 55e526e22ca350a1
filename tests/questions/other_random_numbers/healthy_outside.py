"""Dropout after the checkpoint is not recomputed."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.asking import faults_of


def case() -> str:
    net, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)

    def make_loss() -> torch.Tensor:
        inner = checkpoint(net, x, use_reentrant=False, preserve_rng_state=False)
        return nn.functional.dropout(inner, 0.5).square().sum()

    return faults_of(make_loss)
