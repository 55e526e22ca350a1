"""A head gets no gradient in every second step."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import leave_process_group
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "distributed", ("gate.bias",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.body(x)) if len(x) > 1 else self.body(x)


def case() -> str:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        net = Net()
        wrapped = nn.parallel.DistributedDataParallel(net)

        def train() -> None:
            with ts.training(net):
                for step in range(3):
                    y = wrapped(torch.randn(2, 4)) if step else wrapped(torch.randn(1, 4))  # named
                    y.sum().backward()

        return note_of(train)
    finally:
        leave_process_group()
