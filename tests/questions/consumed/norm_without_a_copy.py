"""An offloading optimizer has copies of the linear layers, and none of the norm between."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("1.weight", "1.bias", "add_param_group")


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 1))
    copies = {each: each.detach().clone().requires_grad_() for part in (net[0], net[2]) for each in part.parameters()}
    optimizer = torch.optim.AdamW(copies.values(), 1e-2)

    def step(_: int) -> None:
        net(torch.randn(4, 6)).square().mean().backward()
        for parameter, copy in copies.items():
            copy.grad, parameter.grad = parameter.grad, None
        optimizer.step()
        net.zero_grad()
        with torch.no_grad():
            for parameter, copy in copies.items():
                parameter.copy_(copy)

    return watched(net, optimizer, step, 12)
