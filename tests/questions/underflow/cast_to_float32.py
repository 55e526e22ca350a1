"""The loss is computed in float32; its gradient underflows in the cast back."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import without_gradient

FINDS, SAYS = "underflow", ("6e-08", "float16", "torch.amp.GradScaler")


def case() -> str:
    net, x = nn.Linear(4, 4).half(), torch.randn(3, 4).half()
    return without_gradient(net, lambda: (net(x).float() * 1e-9).sum())  # named
