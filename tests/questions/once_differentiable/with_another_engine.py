"""The second backward runs by ts.backward, with the direct engine."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("Huber", "once_differentiable")


class Huber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() < 1, x * x / 2, x.abs() - 0.5)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # named
        (x,) = ctx.saved_tensors
        return x.clamp(-1, 1) * gradient


def case() -> str:
    def train() -> None:
        x = torch.randn(4, requires_grad=True)
        (slope,) = torch.autograd.grad(Huber.apply(x).square().sum(), x, create_graph=True)
        ts.backward(slope.square().sum(), engine="direct")

    return note_of(train)
