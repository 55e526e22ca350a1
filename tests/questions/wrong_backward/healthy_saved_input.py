"""A Function saves its input and computes the rest in its backward."""

from __future__ import annotations

from typing import Any

import torch

from tapescope.tests.questions.asking import faults_of


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradients[0] * (gate + x * gate * (1 - gate))


def case() -> str:
    x = torch.randn(3, 4, requires_grad=True)
    return faults_of(lambda: Function.apply(x).sum(), second=True)
