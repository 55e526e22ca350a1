"""A custom Function keeps a view of its output, which no collector frees."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "leak", ("ctx.flat", "Gate", "ctx.save_for_backward")


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        ctx.flat = y.view(-1)  # named
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (1 - ctx.flat.view_as(grad).square())


def case() -> ts.types.Training:
    net = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        Gate.apply(net(torch.randn(4, 6))).mean().backward()
        optimizer.step()

    gc.disable()
    try:
        return watched(net, optimizer, step)
    finally:
        gc.enable()
