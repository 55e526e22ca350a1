"""The checkpointed function takes the next batch from an iterator."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "checkpoint", ("batches",)


def case() -> str:
    net, batches = nn.Linear(4, 4), iter([torch.randn(2, 4), torch.randn(3, 4)])

    def loss_of(scale: torch.Tensor) -> torch.Tensor:
        return (net(next(batches)) * scale).square().sum()  # named

    def train() -> None:
        with ts.training(net):
            checkpoint(loss_of, torch.ones(4, requires_grad=True), use_reentrant=False).backward()

    return note_of(train)
