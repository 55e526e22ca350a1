"""A matrix product of a low-precision activation and a float32 weight."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "custom-function", ("Product", "custom_fwd", "custom_bwd")


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient  # named


def case() -> str:
    layer, weight = nn.Linear(3, 3), torch.randn(3, 2, requires_grad=True)

    def train() -> None:
        with ts.training(layer):
            with torch.autocast("cpu", torch.bfloat16):
                y = Product.apply(layer(torch.randn(2, 3)), weight)
            y.float().sum().backward()

    return note_of(train)
