"""Programs shared by several of these tests."""

from __future__ import annotations

from functools import cache

import torch

import tapescope as ts
from tapescope.engine.studies.workloads import workload


@cache
def captured(name: str, **knobs: int) -> ts.Graph:
    """The graph of a workload's captured forward."""
    _, make_loss = workload(name).build(**knobs)
    with ts.capture():
        loss = make_loss()
    return ts.graph(loss)


class Twice(torch.autograd.Function):
    """A custom Function."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
