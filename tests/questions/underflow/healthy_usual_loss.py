"""A usual loss in float16."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import without_gradient


def case() -> str:
    net, x = nn.Linear(4, 4).half(), torch.randn(3, 4).half()
    return without_gradient(net, lambda: net(x).float().square().mean())
