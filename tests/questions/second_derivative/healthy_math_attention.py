"""The attention runs with the backend whose derivatives exist."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    def train() -> None:
        with ts.capture(), sdpa_kernel(SDPBackend.MATH):
            x = torch.randn(1, 2, 4, 8, requires_grad=True)
            y = nn.functional.scaled_dot_product_attention(x, x, x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            slope.square().mean().backward()

    return note_of(train)
