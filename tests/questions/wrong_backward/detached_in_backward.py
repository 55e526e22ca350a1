"""A backward detaches its saved input."""

from __future__ import annotations

from typing import Any

import torch

from tapescope.tests.questions.asking import faults_of

FINDS, SAYS = "wrong backward", ("differentiable", ".detach()")


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * gradients[0] * x.detach() ** 2


def case() -> str:
    x = torch.randn(3, 4, requires_grad=True)
    return faults_of(lambda: Function.apply(x).sum(), second=True)
