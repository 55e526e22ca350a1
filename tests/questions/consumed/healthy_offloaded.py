"""A hook moves each gradient to a copy of the parameter, which an optimizer steps and copies back."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    copies = {p: p.detach().clone().requires_grad_() for p in net.parameters()}
    optimizer = torch.optim.AdamW(copies.values(), 1e-2)

    def take(parameter):
        copies[parameter].grad, parameter.grad = parameter.grad, None

    handles = [parameter.register_post_accumulate_grad_hook(take) for parameter in net.parameters()]

    def step(_: int) -> None:
        net(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter, copy in copies.items():
                parameter.copy_(copy)

    training = watched(net, optimizer, step, 12)
    for handle in handles:
        handle.remove()
    return training
