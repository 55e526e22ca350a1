"""The backward of the Function consists of tensor operations, so autograd differentiates it."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
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
