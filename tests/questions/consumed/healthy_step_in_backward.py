"""An optimizer inside the backward takes each gradient and sets it to None: nothing is wrong."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    optimizers = {p: torch.optim.SGD([p], 1e-2) for p in net.parameters()}

    def take(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [parameter.register_post_accumulate_grad_hook(take) for parameter in net.parameters()]
    outer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        net(torch.randn(4, 6)).square().mean().backward()
        outer.step()

    training = watched(net, outer, step)
    for handle in handles:
        handle.remove()
    return training
