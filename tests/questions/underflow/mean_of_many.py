"""A mean over many elements in float16."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import without_gradient

FINDS, SAYS = "underflow", ("6e-08", "float16", "torch.amp.GradScaler")


def case() -> str:
    net, x = nn.Linear(4, 512).half(), torch.randn(512, 4).half()

    def make_loss() -> torch.Tensor:
        out = net(x)
        return (out * 1e-3).mean() * 1e-3  # named

    return without_gradient(net, make_loss)
