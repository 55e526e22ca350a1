"""A penalty on the gradient of PyTorch's own attention module."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("attention (MultiheadAttention)", "sdpa_kernel(SDPBackend.MATH)")


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.attention(x, x, x, need_weights=False)
        return y.sum()


def case() -> str:
    critic = Critic()

    def train() -> None:
        with ts.training(critic):
            x = torch.randn(2, 3, 8, requires_grad=True)
            (slope,) = torch.autograd.grad(critic(x), x, create_graph=True)
            (slope.norm() - 1).square().backward()  # named

    return note_of(train)
