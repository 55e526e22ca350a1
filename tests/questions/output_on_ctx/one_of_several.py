"""A custom Function keeps one of its two outputs."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("ctx.second", "Gate", "ctx.save_for_backward")


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, ctx.second = x.sin(), x.cos()  # named
        return first, ctx.second

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return grad * ctx.second


def case() -> ts.types.Training:
    net = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        sum(Gate.apply(net(torch.randn(4, 6)))).mean().backward()
        optimizer.step()

    gc.disable()
    try:
        return watched(net, optimizer, step)
    finally:
        gc.enable()
