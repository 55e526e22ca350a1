"""A Function saves the square of its input."""

from __future__ import annotations

from typing import Any

import torch

from tapescope.tests.questions.asking import faults_of

FINDS, SAYS = "wrong backward", ("saved tensor 0", "intermediate")


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (square,) = ctx.saved_tensors
        return 3 * gradients[0] * square


def case() -> str:
    x = torch.randn(3, 4, requires_grad=True)
    return faults_of(lambda: Function.apply(x).sum(), second=True)
