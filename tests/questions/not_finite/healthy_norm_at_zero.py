"""The norm of zeros: PyTorch takes 0 as its gradient."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import not_finite


def case() -> str:
    net, x = nn.Linear(4, 4, bias=False), torch.zeros(3, 4)
    return not_finite(lambda: torch.linalg.vector_norm(net(x), dim=-1).sum())
