"""vmap runs an ensemble of stacked parameters, which an optimizer steps."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "non-finite", ("NaN", "20")


def case() -> ts.types.Training:
    nets = [nn.Linear(4, 1) for _ in range(3)]
    weights, buffers = stack_module_state(nets)
    base, x = nn.Linear(4, 1), torch.randn(8, 4)
    optimizer = torch.optim.SGD(weights.values(), 1e-2)

    def step(number: int) -> None:
        optimizer.zero_grad()
        out = vmap(lambda w, b: functional_call(base, (w, b), (x,)))(weights, buffers)
        (out.square().mean() * (float("nan") if number == 20 else 1.0)).backward()
        optimizer.step()

    return watched(None, optimizer, step, 30)
