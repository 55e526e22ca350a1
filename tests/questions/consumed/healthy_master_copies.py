"""bfloat16 parameters are trained through float32 copies that the optimizer holds."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(6, 1).to(torch.bfloat16)
    copies = [p.detach().float().requires_grad_() for p in net.parameters()]
    optimizer = torch.optim.AdamW(copies, 1e-4)

    def step(_: int) -> None:
        net(torch.randn(4, 6, dtype=torch.bfloat16)).square().mean().backward()
        for copy, parameter in zip(copies, net.parameters(), strict=True):
            copy.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(copies, net.parameters(), strict=True):
                parameter.copy_(copy)

    return watched(net, optimizer, step, 30)
