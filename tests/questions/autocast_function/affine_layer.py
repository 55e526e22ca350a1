"""A replacement of nn.functional.linear with a bias, under ts.profile."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "custom-function", ("Affine", "custom_fwd")


class Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return torch.mm(gradient, weight), torch.mm(gradient.T, x), gradient.sum(0)  # named


def case() -> str:
    weight, bias = torch.randn(2, 4, requires_grad=True), torch.zeros(2, requires_grad=True)

    def make_loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return Affine.apply(torch.randn(3, 4), weight, bias).float().square().mean()

    return note_of(lambda: ts.profile(make_loss))
