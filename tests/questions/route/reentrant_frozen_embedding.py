"""A frozen embedding feeds reentrant checkpoints, so that the adapters inside get no gradient."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tapescope.tests.questions.reading import unused

FINDS, SAYS = (
    "reentrant checkpoint",
    ("layer.adapter.weight", "requires grad", "use_reentrant=False", "enable_input_require_grads()"),
)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.base(x) + self.adapter(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(9, 4).requires_grad_(False), Adapted(), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.layer, self.embed(ids), use_reentrant=True))  # named


def case() -> str:
    net = Net()
    return unused(lambda: net(torch.tensor([1, 2])).sum(), net)
