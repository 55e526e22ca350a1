"""A cache grows between a checkpoint's forward and its recomputation."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "checkpoint", ("Attention", "self.keys")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.keys = nn.Linear(8, 8), nn.Linear(8, 8), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys.append(self.k(x))  # named
        return (self.q(x) @ torch.cat(self.keys, 1).transpose(1, 2)).softmax(-1).sum(-1)


def case() -> str:
    net, x = Attention(), torch.randn(2, 3, 8, requires_grad=True)
    return note_of(lambda: ts.backward(checkpoint(net, x, use_reentrant=False).sum()))
