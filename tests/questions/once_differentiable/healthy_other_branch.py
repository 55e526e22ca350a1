"""The penalty's gradient does not lead through the Function."""

from __future__ import annotations

import torch
from torch import nn
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
    net = nn.Linear(4, 1)

    def train() -> None:
        with ts.training(net):
            x = torch.randn(3, 4, requires_grad=True)
            y = net(x)
            (slope,) = torch.autograd.grad(y.tanh().sum(), x, create_graph=True)
            (Square.apply(y).mean() + slope.square().mean()).backward()

    return note_of(train)
