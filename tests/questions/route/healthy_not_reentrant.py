"""A frozen embedding feeds a checkpoint that is not reentrant."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.reading import unused


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.base(x) + self.adapter(x)


def case() -> str:
    net = nn.Sequential(nn.Embedding(9, 4).requires_grad_(False), Adapted())
    return unused(lambda: checkpoint(net, torch.tensor([1, 2]), use_reentrant=False).sum(), net)
