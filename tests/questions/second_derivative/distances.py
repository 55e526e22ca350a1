"""The gradient of a kernel of distances is differentiated again, as for a score."""

from __future__ import annotations

import torch

import tapescope as ts
from tapescope.tests.questions.reading import note_of

FINDS, SAYS = "second-derivative", ("CdistBackward0", "use_mm_for_euclid_dist")


def case() -> str:
    points = torch.randn(6, 3, requires_grad=True)

    def train() -> None:
        with ts.capture():
            kernel = torch.exp(-torch.cdist(points, points.detach() + 1))  # named
            (score,) = torch.autograd.grad(kernel.sum(), points, create_graph=True)
            score.square().sum().backward()

    return note_of(train)
