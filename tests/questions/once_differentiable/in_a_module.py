"""A module of the model applies the Function, and the loss contains its gradient's norm."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("Gelu", "once_differentiable")


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # named
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        return gradient * (s + 1.702 * x * s * (1 - s))


class Activation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Gelu.apply(x)


def case() -> str:
    critic = nn.Sequential(nn.Linear(4, 8), Activation(), nn.Linear(8, 1))

    def train() -> None:
        with ts.capture(critic):
            x = torch.randn(3, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            (slope.norm(2, 1) - 1).square().mean().backward()

    return note_of(train)
