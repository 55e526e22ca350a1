"""A layer runs in a reentrant checkpoint and once more outside of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.tests.questions.asking import leave_process_group
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "distributed", ("body", "use_reentrant=False", "static_graph=True")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=True)  # named
        return self.gate(hidden) + self.body(x).sum()


def case() -> str:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        wrapped = nn.parallel.DistributedDataParallel(net)

        def train() -> None:
            with ts.training(net):
                for _ in range(2):
                    wrapped(torch.randn(2, 4, requires_grad=True)).sum().backward()

        return note_of(train)
    finally:
        leave_process_group()
