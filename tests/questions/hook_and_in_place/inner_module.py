"""The hook is on a module inside of a block, the activation in its parent."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "view-in-place", ("body.0 (Linear)", "act (SiLU)", "inplace=False")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.act = nn.Sequential(nn.Linear(4, 4)), nn.SiLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.body(x))  # named


def case() -> str:
    net = Net()
    net.body[0].register_full_backward_hook(lambda module, given, taken: None)
    with ts.policy("bfs"):
        pass
    return note_of(lambda: ts.find_unused(lambda: net(torch.randn(2, 4)).sum(), net))
