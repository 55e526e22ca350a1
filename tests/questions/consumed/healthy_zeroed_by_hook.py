"""A tensor hook takes each gradient and leaves zeros; the loop updates the parameters itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched


def case() -> ts.types.Training:
    net = nn.Linear(4, 1)
    taken: dict[nn.Parameter, torch.Tensor] = {}

    def taking(parameter: nn.Parameter) -> Callable[[torch.Tensor], torch.Tensor]:
        def take(gradient: torch.Tensor) -> torch.Tensor:
            taken[parameter] = gradient.clone()
            return torch.zeros_like(gradient)

        return take

    for parameter in net.parameters():
        parameter.register_hook(taking(parameter))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)

    def step(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter, gradient in taken.items():
                parameter -= 1e-2 * gradient

    return watched(net, optimizer, step, 20)
