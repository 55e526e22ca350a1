"""bfloat16 has the range of float32."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import without_gradient


def case() -> str:
    net, x = nn.Linear(4, 4).bfloat16(), torch.randn(3, 4).bfloat16()
    return without_gradient(net, lambda: (net(x) * 1e-5).sum() * 1e-3)
