"""The same sum in another order of its terms."""

from __future__ import annotations

import torch
from torch import nn

from tapescope.tests.questions.asking import differences


def case() -> str:
    net, head, x = nn.Linear(6, 8), nn.Linear(6, 8), torch.randn(16, 6)
    return differences(lambda: net(x).sum() + head(x).cos().sum(), lambda: head(x).cos().sum() + net(x).sum())
