"""An adapter's own Function inside a module, whose forward is captured."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "custom-function", ("LowRank", "custom_fwd", "cast_inputs")


class LowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, down, up):
        ctx.save_for_backward(x, down, up)
        return (x @ down) @ up

    @staticmethod
    def backward(ctx, gradient):
        x, down, up = ctx.saved_tensors
        inner = gradient @ up.T  # named
        return inner @ down.T, x.T @ inner, (x @ down).T @ gradient


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + LowRank.apply(x, self.down, self.up)


def case() -> str:
    net = nn.Sequential(nn.Linear(4, 4), Adapter())

    def train() -> None:
        with ts.capture(net):
            with torch.autocast("cpu", torch.bfloat16):
                loss = net(torch.randn(3, 4)).float().sum()
            loss.backward()

    return note_of(train)
