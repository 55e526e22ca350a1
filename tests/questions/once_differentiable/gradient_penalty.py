"""A gradient penalty through a Function whose backward is written for speed."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("Square", "once_differentiable", "create_graph")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # named
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def case() -> str:
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.training(net):
            x = torch.randn(3, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(Square.apply(net(x)).tanh().sum(), x, create_graph=True)
            slope.square().mean().backward()

    return note_of(train)
