"""A backward computes under torch.no_grad()."""

from __future__ import annotations

from typing import Any

import torch

from tapescope.tests.questions.asking import faults_of

FINDS, SAYS = "wrong backward", ("create_graph=True", "100 %")


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = x.exp()
        return gradients[0] * slope


def case() -> str:
    x = torch.randn(3, 4, requires_grad=True)
    return faults_of(lambda: Function.apply(x).sum(), second=True)
