"""A Function saves its output, which autograd follows."""

from __future__ import annotations

from typing import Any

import torch

from tapescope.tests.questions.asking import faults_of


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = torch.sigmoid(x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (result,) = ctx.saved_tensors
        return gradients[0] * result * (1 - result)


def case() -> str:
    x = torch.randn(3, 4, requires_grad=True)
    return faults_of(lambda: Function.apply(x).sum(), second=True)
