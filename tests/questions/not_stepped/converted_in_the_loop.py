"""In step 10 a conversion makes new parameters, as with torch.__future__.set_overwrite_module_params_on_conversion."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("weight", ".to()", "optimizer")


def case() -> ts.types.Training:
    net = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(number: int) -> None:
        if number == 10:
            torch.__future__.set_overwrite_module_params_on_conversion(True)
            net.to(torch.float64)
            torch.__future__.set_overwrite_module_params_on_conversion(False)
        optimizer.zero_grad()
        net(torch.randn(4, 5, dtype=net.weight.dtype)).square().mean().backward()
        optimizer.step()

    return watched(net, optimizer, step, 30)
