"""create_graph is passed, but the gradient is only printed."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def case() -> str:
    def train() -> None:
        with ts.capture():
            x = torch.randn(3, requires_grad=True)
            (slope,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
            assert slope.norm().item() > 0

    return note_of(train)
