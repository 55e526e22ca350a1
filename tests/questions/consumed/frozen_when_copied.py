"""Master copies were made while the last layer was frozen, so it has none."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("2.weight",)


def case() -> ts.types.Training:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).to(torch.bfloat16)
    net[2].requires_grad_(False)
    trained = [each for each in net.parameters() if each.requires_grad]
    copies = [each.detach().float().requires_grad_() for each in trained]
    optimizer = torch.optim.AdamW(copies, 1e-2)
    net[2].requires_grad_(True)

    def step(_: int) -> None:
        net(torch.randn(4, 6, dtype=torch.bfloat16)).square().mean().backward()
        for copy, parameter in zip(copies, trained, strict=True):
            copy.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        net.zero_grad()
        with torch.no_grad():
            for copy, parameter in zip(copies, trained, strict=True):
                parameter.copy_(copy)

    return watched(net, optimizer, step, 12)
