"""The output in float16 is divided by a large number twice."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import without_gradient

FINDS, SAYS = "underflow", ("6e-08", "float16", "torch.amp.GradScaler")


def case() -> str:
    net, x = nn.Linear(4, 4).half(), torch.randn(3, 4).half()
    return without_gradient(net, lambda: (net(x) / 3e4 / 3e4).sum())  # named
