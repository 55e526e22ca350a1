"""Attention scores by a Function with a batched product."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "custom-function", ("Scores", "custom_bwd")


class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys):
        ctx.save_for_backward(queries, keys)
        return torch.bmm(queries, keys.transpose(1, 2))

    @staticmethod
    def backward(ctx, gradient):
        queries, keys = ctx.saved_tensors
        return torch.bmm(gradient, keys), torch.bmm(gradient.transpose(1, 2), queries)  # named


def case() -> str:
    queries, keys = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 5, 4, requires_grad=True)

    def train() -> None:
        with ts.training():
            with torch.autocast("cpu", torch.bfloat16):
                loss = Scores.apply(queries, keys).float().mean()
            loss.backward()

    return note_of(train)
