"""Gradients are accumulated without synchronization."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import leave_process_group
from tapescope.tests.questions.reading import note_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.body(x))


def case() -> str:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        wrapped = nn.parallel.DistributedDataParallel(net)

        def train() -> None:
            with ts.training(net):
                with wrapped.no_sync():
                    wrapped(torch.randn(2, 4)).sum().backward()
                wrapped(torch.randn(2, 4)).sum().backward()

        return note_of(train)
    finally:
        leave_process_group()
