"""A product with the Hessian in each step, detached."""

from __future__ import annotations

import gc

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Softplus(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_: int) -> None:
        optimizer.zero_grad()
        loss = net(torch.randn(4, 6)).square().mean()
        (first,) = torch.autograd.grad(loss, net[0].weight, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), net[0].weight, retain_graph=True)
        loss.backward()
        assert second.grad_fn is None
        optimizer.step()

    gc.disable()
    try:
        return watched(net, optimizer, step)
    finally:
        gc.enable()
