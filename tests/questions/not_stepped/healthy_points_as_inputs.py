"""A model keeps its inputs, which require gradients, as attributes: a physics-informed network."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

ALSO = ("without gradient",)


class Solver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self.points = torch.linspace(0, 1, 8)[:, None].requires_grad_()

    def loss(self) -> torch.Tensor:
        (slope,) = torch.autograd.grad(self.net(self.points).sum(), self.points, create_graph=True)
        return (slope - 1).square().mean()


def case() -> ts.types.Training:
    solver = Solver()
    optimizer = torch.optim.Adam(solver.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        solver.loss().backward()
        optimizer.step()

    return watched(solver, optimizer, step, 20)
