"""The backward of a Function is computed by NumPy, which cannot be differentiated."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("Cumulative", "once_differentiable", "tensor operations")


class Cumulative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy().cumsum())

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # named
        return torch.from_numpy(gradient.numpy()[::-1].cumsum()[::-1].copy())


def case() -> str:
    def train() -> None:
        with ts.training():
            x = torch.randn(5, requires_grad=True)
            y = Cumulative.apply(x).square().sum()
            (slope,) = torch.autograd.grad(y, x, create_graph=True)
            slope.square().sum().backward()

    return note_of(train)
