"""The loss of a float16 model is multiplied with a small weight."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import without_gradient

FINDS, SAYS = "underflow", ("6e-08", "float16", "torch.amp.GradScaler")


def case() -> str:
    net, x = nn.Linear(4, 4).half(), torch.randn(3, 4).half()
    return without_gradient(net, lambda: (net(x) * 1e-5).sum() * 1e-3)  # named
