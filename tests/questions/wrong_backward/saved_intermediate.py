"""A Function saves a sigmoid of its forward, which is a constant in a second backward."""

from __future__ import annotations

from typing import Any

import torch

from tapescope.tests.questions.asking import faults_of

FINDS, SAYS = "wrong backward", ("saved tensor 1", "intermediate", "save_for_backward", "x")


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        x, gate = ctx.saved_tensors
        return gradients[0] * (gate + x * gate * (1 - gate))


def case() -> str:
    x = torch.randn(3, 4, requires_grad=True)
    return faults_of(lambda: Function.apply(x).sum(), second=True)
