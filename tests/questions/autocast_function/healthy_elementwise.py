"""The backward consists of elementwise operations, which promote dtypes."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale, gradient * x


def case() -> str:
    layer, scale = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)

    def train() -> None:
        with ts.training(layer):
            with torch.autocast("cpu", torch.bfloat16):
                y = Gate.apply(layer(torch.randn(2, 3)), scale)
            y.float().sum().backward()

    return note_of(train)
