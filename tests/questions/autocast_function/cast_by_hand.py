"""Without autocast, the forward casts by hand, and the backward does not."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "custom-function", ("Narrow", "cast the tensors")


class Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.bfloat16() @ weight.bfloat16()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient  # named


def case() -> str:
    x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)

    def train() -> None:
        with ts.capture():
            Narrow.apply(x, weight).float().sum().backward()

    return note_of(train)
