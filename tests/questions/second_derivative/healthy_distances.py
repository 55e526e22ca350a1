"""Distances by a matrix product have a second derivative."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of


def case() -> str:
    points = torch.randn(6, 3, requires_grad=True)

    def train() -> None:
        with ts.capture():
            others = points.detach() + 1
            distances = torch.cdist(points, others, compute_mode="use_mm_for_euclid_dist")
            (score,) = torch.autograd.grad(distances.sum(), points, create_graph=True)
            score.square().sum().backward()

    return note_of(train)
