"""An optimizer in the backward takes the body's gradients; the head, added later, has none."""

from __future__ import annotations

import torch
from torch import nn

import tapescope as ts
from tapescope.tests.questions.asking import watched

FINDS, SAYS = "never stepped", ("head.weight", "add_param_group")


def case() -> ts.types.Training:
    net = nn.ModuleDict({"body": nn.Linear(6, 6), "head": nn.Linear(6, 1)})
    optimizers = {each: torch.optim.SGD([each], 1e-2) for each in net["body"].parameters()}

    def take(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [each.register_post_accumulate_grad_hook(take) for each in net["body"].parameters()]
    outer = torch.optim.SGD(net["body"].parameters(), 1e-2)

    def step(_: int) -> None:
        net["head"](net["body"](torch.randn(4, 6))).square().mean().backward()
        outer.step()
        net["head"].zero_grad()

    training = watched(net, outer, step, 12)
    for handle in handles:
        handle.remove()
    return training
